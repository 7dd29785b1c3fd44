"""`inspect`: prints the platforms of images, looked up as the service does it."""

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
import typer
import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from extender.cli.image_lookup import EndpointAnswer, LookedUp, answer_of, look_up_images
from extender.cli.options import Assignments, ConfigFile, required_platforms
from extender.config.reading import read_config
from extender.errors import InvalidReference
from extender.images.content import Failure
from extender.images.manifest import Image, Kind
from extender.images.platform import Compatibility, Platform, runs_on
from extender.images.platform_states import claim_text
from extender.images.reference import parse_reference
from extender.logs import configure_logs
from extender.placement.facts import Pending, PodImage, Unknown, fact_of
from extender.service.operator_policies import policy_of
from extender.verifier.verification import Verification

_COLOURS = {"verified": "green", "claimed": "yellow"}
_COLUMNS = 160  # enough for a platform, a digest and a sentence


class LookedInside(msgspec.Struct, frozen=True, kw_only=True):
    """What a look inside found of a platform: see `Verification`."""

    platform: str
    state: str
    program: str
    detail: str
    requests: int
    read_bytes: int
    layer_bytes: int


class Inspected(msgspec.Struct, frozen=True, kw_only=True):
    """One image as `-o json` prints it."""

    reference: str
    canonical: str | None
    digest: str | None
    media_type: str | None
    kind: str | None
    platforms: list[dict[str, str | int]]
    skipped: list[dict[str, str]]
    unknown: dict[str, str] | None
    endpoints: list[EndpointAnswer]
    inside: list[LookedInside]


def inspect(
    images: Annotated[list[str], typer.Argument(metavar="IMAGE...", help="Image references as pods name them.")],
    output: Annotated[Literal["table", "json", "yaml"], typer.Option("--output", "-o", help="How to print.")] = "table",
    require: Annotated[
        list[str] | None, typer.Option(metavar="PLATFORM", help="Exit 1 if an image does not run on it. Repeatable.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show whom nodes ask for each image, and what they answered.")
    ] = False,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Read layers until it is known for which machine each platform's program is."),
    ] = False,
    file: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Show the platforms of images, with digest, media type, and why something is unknown.

    Exit code 1 if an image is unknown or lacks a required platform or, with --verify, claims one falsely.

    Example: multiarch-extender inspect debian:12 quay.io/prometheus/prometheus --require linux/arm64
    """
    settings = read_config(file, [*(assignments or ()), "cache.url='memory:'"])
    configure_logs("error", "console")
    required = required_platforms(require or ())
    looked_up = look_up_images(images, settings, look_inside=verify, wanted=required)
    found = [each.answer for each in looked_up]
    results = [_inspected(reference, each) for reference, each in zip(images, looked_up, strict=True)]
    _print(results, output, verbose=verbose)
    compatibility = policy_of(settings).compatibility
    lacking = [
        line
        for reference, answer in zip(images, found, strict=True)
        for line in _lacking(reference, answer, required, compatibility)
    ]
    lacking += [
        f"{reference} {claim_text(inside.denied)}"
        for reference, each in zip(images, looked_up, strict=True)
        for inside in each.inside
        if inside.denied
    ]
    for line in lacking:
        print(line, file=sys.stderr)
    if lacking or any(result.unknown for result in results):
        raise typer.Exit(1)


def _inspected(reference: str, looked_up: LookedUp) -> Inspected:
    answer, endpoints = looked_up.answer, list(looked_up.endpoints)
    try:
        canonical = str(parse_reference(reference))
    except InvalidReference:
        canonical = None
    unknown = _unknown(reference, answer)
    if isinstance(answer, Failure):
        return Inspected(
            reference=reference, canonical=canonical, digest=None, media_type=None, kind=None,
            platforms=[], skipped=[], unknown=unknown, endpoints=endpoints, inside=[],
        )  # fmt: skip
    return Inspected(
        reference=reference,
        canonical=canonical,
        digest=answer.digest,
        media_type=answer.media_type,
        kind=answer.kind.value,
        platforms=[
            {"platform": str(entry.platform), "digest": entry.digest, "size_bytes": entry.size_bytes}
            for entry in answer.entries
        ],
        skipped=[{"digest": item.digest, "why": item.why} for item in answer.skipped],
        unknown=unknown,
        endpoints=endpoints,
        inside=[_inside(each) for each in looked_up.inside],
    )


def _inside(found: Verification) -> LookedInside:
    return LookedInside(
        platform=str(found.platform),
        state=found.state.value,
        program=found.program,
        detail=found.detail,
        requests=found.requests,
        read_bytes=found.read_bytes,
        layer_bytes=found.layer_bytes,
    )


def _unknown(reference: str, answer: Image | Failure) -> dict[str, str] | None:
    fact = fact_of(PodImage(reference), answer_of(answer), may_be_pending=False)
    return {"cause": fact.cause.value, "detail": fact.detail} if isinstance(fact, Pending | Unknown) else None


def _lacking(
    reference: str, answer: Image | Failure, required: Sequence[Platform], compatibility: Compatibility
) -> list[str]:
    if isinstance(answer, Failure):
        return []
    platforms = frozenset(entry.platform for entry in answer.entries)
    return [
        f"{reference} does not run on {platform}"
        for platform in required
        if not runs_on(platforms, platform, compatibility)
    ]


def _print(results: Sequence[Inspected], output: str, *, verbose: bool) -> None:
    plain: list[dict[str, Any]] = [msgspec.to_builtins(result) for result in results]
    if output == "json":
        print(json.dumps(plain, indent=2))
    elif output == "yaml":
        print(yaml.safe_dump(plain, sort_keys=False), end="")
    else:
        _print_table(results, verbose=verbose)


def _print_table(results: Sequence[Inspected], *, verbose: bool) -> None:
    """Prints whole digests, which can be copied: a narrow terminal wraps lines, and nothing is cut."""
    console = Console(highlight=False)
    console.width = max(console.width, _COLUMNS)
    for result in results:
        console.print(f"[bold]{escape(result.canonical or result.reference)}[/]")
        table = Table.grid(padding=(0, 2), pad_edge=True)
        for _ in range(3):
            table.add_column(no_wrap=True)
        if result.kind:
            table.add_row(result.kind, result.digest, result.media_type)
        if result.unknown:
            table.add_row("[yellow]unknown[/]", f"{result.unknown['cause']}: {escape(result.unknown['detail'])}")
        for entry in result.platforms:
            size = _size(int(entry["size_bytes"]))
            table.add_row(f"[green]{entry['platform']}[/]", str(entry["digest"]), f"{size}{_of_what(result)}")
        for inside in result.inside:
            table.add_row(
                f"[{_COLOURS.get(inside.state, 'red')}]{inside.state}[/]",
                f"{inside.platform}: {escape(f'{inside.program} {inside.detail}'.strip())}",
                f"{_size(inside.read_bytes)} of {_size(inside.layer_bytes)} read",
            )
        for item in result.skipped:
            table.add_row("[dim]skipped[/]", f"[dim]{item['digest']}[/]", f"[dim]{escape(item['why'])}[/]")
        console.print(table)
        for endpoint in result.endpoints if verbose else ():
            console.print(
                f"  asked {escape(endpoint.url)}: {escape(endpoint.answered or 'not needed')}", soft_wrap=True
            )


def _of_what(result: Inspected) -> str:
    """Says what a size is of: an index's children are not fetched, so only their manifests' sizes are known."""
    return " manifest" if result.kind == Kind.INDEX else ""


def _size(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
