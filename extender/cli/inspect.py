"""`inspect`: prints the platforms of images, looked up as the service does it."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import msgspec
import typer

from extender.cli.console import Span, print_line, print_problem, print_rows, print_structs
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
from extender.images.manifest import Kind, PlatformEntry, Skipped
from extender.images.platform import Compatibility, Platform, runs_on
from extender.images.reference import parse_reference
from extender.placement.facts import Pending, PodImage, Unknown, fact_of
from extender.reports.quantities import size_text
from extender.service.operator_policies import policy_of
from extender.verifier.verification import PlatformState, Verification

_COLOURS = {"verified": "green", "claimed": "yellow"}


class Inspected(msgspec.Struct, frozen=True, kw_only=True):
    """One image, as it is printed. `canonical` is None for what is no reference."""

    reference: str
    canonical: str | None
    digest: str | None = None
    media_type: str | None = None
    kind: str | None = None
    platforms: tuple[PlatformEntry, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    unknown: dict[str, str] | None
    endpoints: tuple[EndpointAnswer, ...]
    inside: tuple[Verification, ...] = ()

    def plain(self) -> dict[str, object]:
        """The same with platforms as texts, for JSON."""
        return {**msgspec.structs.asdict(self), "platforms": _plain(self.platforms), "inside": _plain(self.inside)}


def _plain(found: Iterable[PlatformEntry | Verification]) -> list[dict[str, object]]:
    return [{**msgspec.structs.asdict(each), "platform": str(each.platform)} for each in found]


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
    looked_up = look_up_images(images, settings, verify=verify, wanted=required)
    results = [_inspected(reference, each, settings) for reference, each in zip(images, looked_up, strict=True)]
    if output == "table":
        _print_table(results, verbose=verbose)
    else:
        print_structs([each.plain() for each in results], output)
    compatibility = policy_of(settings).compatibility
    lacking = [line for each in results for line in _lacking(each, required, compatibility)]
    lacking += [
        f"{each.reference} {found.lie}"
        for each in results
        for found in each.inside
        if found.lie and (not required or found.platform in required)
    ]
    for line in lacking:
        print_problem(line)
    if not all(result.canonical for result in results):  # what is no name has no answer
        raise typer.Exit(2)
    if lacking or any(result.unknown for result in results):
        raise typer.Exit(1)


def _inspected(reference: str, looked_up: LookedUp, settings: Config) -> Inspected:
    try:
        canonical = str(parse_reference(reference))
    except InvalidReference:
        canonical = None
    answer, unknown = looked_up.answer, _unknown(reference, looked_up, settings)
    found = Inspected(reference=reference, canonical=canonical, unknown=unknown, endpoints=looked_up.endpoints)
    if isinstance(answer, Failure):
        return found
    return msgspec.structs.replace(
        found,
        digest=answer.digest or None,
        media_type=answer.media_type or None,
        kind=answer.kind.value,
        platforms=answer.entries,
        skipped=answer.skipped,
        inside=looked_up.verifications,
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


def _lacking(found: Inspected, required: Sequence[Platform], compatibility: Compatibility) -> list[str]:
    if not found.platforms:  # what has no platforms is unknown, or runs anywhere
        return []
    verified = (each.platform for each in found.inside if each.state is PlatformState.VERIFIED)
    platforms = frozenset((*(entry.platform for entry in found.platforms), *verified))
    return [
        f"{found.reference} does not run on {platform}"
        for platform in required
        if not runs_on(platforms, platform, compatibility)
    ]


def _print_table(results: Sequence[Inspected], *, verbose: bool) -> None:
    for result in results:
        print_line((result.canonical or result.reference, "bold"))
        print_rows(_rows(result))
        for endpoint in result.endpoints:
            if verbose or (result.unknown and endpoint.answered):
                print_line(f"  asked {endpoint.url}: {endpoint.answered or 'not needed'}")


def _rows(result: Inspected) -> Iterator[Sequence[Span]]:
    if result.kind:
        by_operator = "by the operator's word, in placement.images" if result.kind == Kind.STATED else ""
        yield result.kind, result.digest or by_operator, result.media_type or ""
    if result.unknown:
        yield ("unknown", "yellow"), f"{result.unknown['cause']}: {result.unknown['detail']}"
        if remedy := result.unknown.get("remedy"):
            yield "", f"add {remedy}"
    for entry in result.platforms:
        size = f"{size_text(entry.size_bytes, is_decimal=True)}{_of_what(result)}" if entry.digest else ""
        yield (str(entry.platform), "green"), entry.digest, size
    for inside in result.inside:
        found = f"{inside.platform}: {inside.program} {inside.detail}".rstrip()
        sizes = [size_text(each, is_decimal=True) for each in (inside.read_bytes, inside.layer_bytes)]
        read = f"{sizes[0]} of {sizes[1]} read"
        yield (inside.state, _COLOURS.get(inside.state, "red")), found, read
    for item in result.skipped:
        yield ("skipped", "dim"), (item.digest, "dim"), (item.why, "dim")


def _of_what(result: Inspected) -> str:
    """Says what a size is of: an index's children are not fetched, so only their manifests' sizes are known."""
    return " manifest" if result.kind == Kind.INDEX else ""
