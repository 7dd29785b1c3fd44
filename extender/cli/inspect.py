"""`inspect`: prints the platforms of images, looked up as the service does it."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
import typer

from extender.cli.console import Part, print_line, print_problem, print_rows, print_structs
from extender.cli.lookups import EndpointAnswer, LookedUp, answer_of, look_up_images
from extender.cli.named_registries import with_named
from extender.cli.options import (
    Assignments,
    ConfigFile,
    Context,
    Kubeconfig,
    Output,
    read_settings,
    required_platforms,
)
from extender.cli.registry_settings import line_to_type
from extender.config.tree import Config
from extender.errors import InvalidReference
from extender.images.content import Failure
from extender.images.manifest import Kind
from extender.images.platform import Compatibility, Platform, runs_on
from extender.images.reference import parse_reference
from extender.placement.facts import Pending, PodImage, Unknown, fact_of
from extender.reports.quantities import size_text
from extender.service.operator_policies import policy_of
from extender.verifier.verification import PlatformState, Verification

_COLOURS = {"verified": "green", "claimed": "yellow"}


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
    output: Output = "table",
    require: Annotated[
        list[str] | None, typer.Option(metavar="PLATFORM", help="Exit 1 if an image does not run on it. Repeatable.")
    ] = None,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Show whom nodes ask for each image, and what they answered, also of what is known."
        ),
    ] = False,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Read layers until it is known for which machine each platform's program is."),
    ] = False,
    file: ConfigFile = None,
    assignments: Assignments = None,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
) -> None:
    """Show the platforms of images, with digest, media type, and why something is unknown.

    Exit code 1 if an image is unknown or lacks a required platform or, with --verify, claims one falsely.

    Example: multiarch-extender inspect debian:12 quay.io/prometheus/prometheus --require linux/arm64
    """
    settings = read_settings(file, assignments, kubeconfig, context)
    required = required_platforms(require or ())
    settings = with_named(settings, images)
    looked_up = look_up_images(images, settings, look_inside=verify, wanted=required)
    results = [_inspected(reference, each, settings) for reference, each in zip(images, looked_up, strict=True)]
    _print(results, output, verbose=verbose)
    compatibility = policy_of(settings).compatibility
    lacking = [
        line
        for reference, each in zip(images, looked_up, strict=True)
        for line in _lacking(reference, each, required, compatibility)
    ]
    lacking += [
        f"{reference} {inside.lie}"
        for reference, each in zip(images, looked_up, strict=True)
        for inside in each.inside
        if inside.lie and (not required or inside.platform in required)
    ]
    for line in lacking:
        print_problem(line)
    if not all(result.canonical for result in results):  # what is no name has no answer
        raise typer.Exit(2)
    if lacking or any(result.unknown for result in results):
        raise typer.Exit(1)


def _inspected(reference: str, looked_up: LookedUp, settings: Config) -> Inspected:
    answer, endpoints = looked_up.answer, list(looked_up.endpoints)
    try:
        canonical = str(parse_reference(reference))
    except InvalidReference:
        canonical = None
    unknown = _unknown(reference, looked_up, settings)
    if isinstance(answer, Failure):
        return Inspected(
            reference=reference, canonical=canonical, digest=None, media_type=None, kind=None,
            platforms=[], skipped=[], unknown=unknown, endpoints=endpoints, inside=[],
        )  # fmt: skip
    return Inspected(
        reference=reference,
        canonical=canonical,
        digest=answer.digest or None,
        media_type=answer.media_type or None,
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


def _unknown(reference: str, looked_up: LookedUp, settings: Config) -> dict[str, str] | None:
    answer = looked_up.answer
    fact = fact_of(PodImage(reference), answer_of(answer), may_be_pending=False)
    if not isinstance(fact, Pending | Unknown):
        return None
    unknown = {"cause": fact.cause.value, "detail": fact.detail}
    answered = [each.answered for each in looked_up.endpoints]
    if isinstance(answer, Failure) and (line := line_to_type(answer, reference, answered, settings.registry)):
        unknown["remedy"] = line
    return unknown


def _lacking(
    reference: str, looked_up: LookedUp, required: Sequence[Platform], compatibility: Compatibility
) -> list[str]:
    answer = looked_up.answer
    if isinstance(answer, Failure) or not answer.entries:  # what has no platforms is unknown, or runs anywhere
        return []
    verified = (each.platform for each in looked_up.inside if each.state is PlatformState.VERIFIED)
    platforms = frozenset((*(entry.platform for entry in answer.entries), *verified))
    return [
        f"{reference} does not run on {platform}"
        for platform in required
        if not runs_on(platforms, platform, compatibility)
    ]


def _print(results: Sequence[Inspected], output: str, *, verbose: bool) -> None:
    if output == "table":
        _print_table(results, verbose=verbose)
    else:
        print_structs(results, output)


def _print_table(results: Sequence[Inspected], *, verbose: bool) -> None:
    for result in results:
        print_line((result.canonical or result.reference, "bold"))
        print_rows(_rows(result))
        for endpoint in result.endpoints:
            if verbose or (result.unknown and endpoint.answered):
                print_line(f"  asked {endpoint.url}: {endpoint.answered or 'not needed'}")


def _rows(result: Inspected) -> Iterator[Sequence[Part]]:
    if result.kind:
        by_operator = "by the operator's word, in placement.images" if result.kind == Kind.STATED else ""
        yield result.kind, result.digest or by_operator, result.media_type or ""
    if result.unknown:
        yield ("unknown", "yellow"), f"{result.unknown['cause']}: {result.unknown['detail']}"
        if remedy := result.unknown.get("remedy"):
            yield "", f"add {remedy}"
    for entry in result.platforms:
        size = f"{size_text(int(entry['size_bytes']), is_decimal=True)}{_of_what(result)}" if entry["digest"] else ""
        yield (str(entry["platform"]), "green"), str(entry["digest"]), size
    for inside in result.inside:
        found = f"{inside.platform}: {inside.program} {inside.detail}".rstrip()
        sizes = [size_text(each, is_decimal=True) for each in (inside.read_bytes, inside.layer_bytes)]
        read = f"{sizes[0]} of {sizes[1]} read"
        yield (inside.state, _COLOURS.get(inside.state, "red")), found, read
    for item in result.skipped:
        yield ("skipped", "dim"), (item["digest"], "dim"), (item["why"], "dim")


def _of_what(result: Inspected) -> str:
    """Says what a size is of: an index's children are not fetched, so only their manifests' sizes are known."""
    return " manifest" if result.kind == Kind.INDEX else ""
