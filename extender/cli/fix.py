"""`fix`: gives manifests back with what the webhook would add, or without what their images do not need."""

import asyncio
import contextlib
import difflib
import errno
import io
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from extender.cli.console import print_copy, print_line, print_problem
from extender.cli.lookups import answer_of, look_up_images
from extender.cli.manifest_files import STANDARD_INPUT, ManifestFile, read_files, unread_line
from extender.cli.options import (
    Assignments,
    ConfigFile,
    Context,
    Kubeconfig,
    Manifests,
    Namespace,
    opened_client,
    read_settings,
    required_platforms,
)
from extender.cluster.workload_lists import list_nodes
from extender.config.tree import Config
from extender.errors import ClusterError, ConfigError
from extender.images.content import Content, Failure
from extender.images.platform import Platform
from extender.manifests.fixing import FixedTemplate, ManifestStream, TemplateFixer
from extender.manifests.stream import ManifestError
from extender.placement.affinity import AffinityMode
from extender.placement.facts import ImageFact, PodImage, fact_of
from extender.placement.nodes import USUAL, USUAL_NODES, ClusterNodes
from extender.placement.relaxing import Relaxer
from extender.placement.templates import Templates
from extender.reports.explanation import cluster_nodes
from extender.service.operator_policies import admission_settings_of, policy_of


class FixedFile(msgspec.Struct, frozen=True):
    """One file, before and after; `name` is `-` for the standard input.

    `notes` are lines about what is not read or not written there. `is_read`: it could be read to its end.
    """

    name: str
    before: str
    after: str
    findings: list[FixedTemplate] = []
    notes: list[str] = []
    encoding: str = "utf-8"
    is_read: bool = True


def fix(
    manifests: Manifests,
    namespace: Namespace = "",
    check: Annotated[bool, typer.Option("--check", help="One line a change; exit 1 if there is any.")] = False,
    write: Annotated[
        bool, typer.Option("--write", help="Change the files; with -f - print the whole manifests.")
    ] = False,
    node_affinity: Annotated[
        AffinityMode | None,
        typer.Option(
            help="Which node affinity to write. Without it: admission.node_affinity, or required if that is none."
        ),
    ] = None,
    allow_unknown: Annotated[
        bool,
        typer.Option("--allow-unknown", help="Exit 0 although an image is not known and its template is as it was."),
    ] = False,
    relax: Annotated[
        bool, typer.Option("--relax", help="Take constraints on architecture out that the images do not need, instead.")
    ] = False,
    require: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PLATFORM",
            help="With --relax: one of the platforms of the nodes. Repeatable; by default linux/amd64 and linux/arm64.",
        ),
    ] = None,
    file: ConfigFile = None,
    assignments: Assignments = None,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
) -> None:
    """Write into pod templates what the webhook would add to their pods: node affinity and tolerations.

    In a cluster of amd64 and arm64, or in the one that --kubeconfig or --context names.

    With --relax, take out what their authors wrote of the kind and their images do not need.

    Prints a diff, unless --check or --write is given. What is not known is left as it is and said on standard error.
    Exit code 1 if a template was left as it is, or needs its author. Exit code 2 if a file of manifests could not be
    read to its end.

    Example: helm template my-chart | multiarch-extender fix -f -
    """
    if check and write:
        raise ConfigError("--check and --write exclude each other: --check changes nothing")
    if node_affinity and relax:
        raise ConfigError("--node-affinity and --relax exclude each other: --relax writes none")
    if require and not relax:
        raise ConfigError("--require says of which platforms the nodes are for --relax; give that too")
    files = read_files(manifests or ())
    targets = required_platforms(require or ()) or USUAL
    settings = read_settings(file, assignments, kubeconfig, context)
    if relax:
        fixer: TemplateFixer = _relaxer(settings, targets, namespace)
    else:
        is_named = bool(kubeconfig or context)
        fixer = _templates(settings, node_affinity, asyncio.run(_nodes(settings)) if is_named else USUAL_NODES)
    fixed = _fix_all(files, settings, fixer, namespace)
    gaps = [gap for one in fixed for gap in one.findings if _fails(gap, allow_unknown=allow_unknown)]
    for one in fixed:
        for line in _complaints(one):
            print_problem(line)
    if check:
        _print_changes(fixed)
    else:
        _give(fixed, write=write)
    if not all(one.is_read for one in fixed):
        raise typer.Exit(2)
    if gaps or (check and any(one.before != one.after for one in fixed)):
        raise typer.Exit(1)


async def _nodes(settings: Config) -> ClusterNodes:
    try:
        async with opened_client(settings) as client:
            return cluster_nodes(await list_nodes(client))
    except ClusterError as exc:
        raise ConfigError(f"the cluster's nodes cannot be read: {exc}") from exc


def _templates(settings: Config, chosen: AffinityMode | None, cluster: ClusterNodes) -> TemplateFixer:
    configured = settings.admission.node_affinity
    mode = chosen or (AffinityMode.REQUIRED if configured is AffinityMode.NONE else configured)
    admission = msgspec.structs.replace(admission_settings_of(settings), node_affinity=mode, platforms_annotation=False)
    return Templates(policy_of(settings), admission, cluster=cluster)


def _relaxer(settings: Config, targets: Sequence[Platform], namespace: str) -> TemplateFixer:
    return Relaxer(policy_of(settings), admission_settings_of(settings), targets, namespace)


def _fix_all(files: Sequence[ManifestFile], settings: Config, fixer: TemplateFixer, namespace: str) -> list[FixedFile]:
    """Looks every image up once, then fixes each file that can be read."""
    unread, patches, streams = [], [], []
    for file in files:
        if file.note:
            patches.append(FixedFile(file.name, file.text, file.text, notes=[file.note], encoding=file.encoding))
            continue
        try:
            if not file.problem:
                streams.append((file, ManifestStream(file.text, fixer, namespace)))
            problem = file.problem
        except ManifestError as exc:
            problem = unread_line(file.name, exc)
        if problem:
            unread.append(FixedFile(file.name, file.text, file.text, notes=[problem], is_read=False))
    references = list(dict.fromkeys(image.reference for _, stream in streams for image in stream.images))
    answers = [answer_of(each.answer) for each in look_up_images(references, settings)] if references else []
    known: Mapping[str, Content | Failure] = dict(zip(references, answers, strict=True))

    def facts_of(images: Sequence[PodImage]) -> list[ImageFact]:
        return [fact_of(image, known[image.reference], may_be_pending=False) for image in images]

    fixed = [
        FixedFile(
            file.name,
            file.text,
            *stream.fix(facts_of),
            notes=[f"{file.name}: {note}" for note in stream.notes],
            encoding=file.encoding,
        )
        for file, stream in streams
    ]
    if unread and not fixed:
        raise ConfigError("; ".join(note for file in unread for note in file.notes))
    return [*fixed, *patches, *unread]


def _fails(finding: FixedTemplate, *, allow_unknown: bool) -> bool:
    return bool(finding.change.warnings or (finding.change.unknown and not allow_unknown))


def _complaints(fixed: FixedFile) -> Iterator[str]:
    yield from fixed.notes
    for finding in fixed.findings:
        where = f"{fixed.name}:{finding.line}: {finding.template}"
        if finding.change.gap:
            yield f"{where} is left as it is, {finding.change.gap}"
        for why in finding.change.unknown:
            yield f"{where} is left as it is: {why}"
        for why in finding.change.kept:
            yield f"{where} keeps {why}"
        for why in finding.change.warnings:
            yield f"{where}: {why}"


def _print_changes(fixed: Sequence[FixedFile]) -> None:
    for one in fixed:
        for finding in one.findings:
            change = finding.change
            if change.operations:
                what = ", ".join(change.removed or change.added) or "what an earlier pass of the webhook added"
                verb = "does not need" if change.removed else "lacks"
                print_line(f"{one.name}:{finding.line}: {finding.template} {verb} {what}")


def _give(fixed: Sequence[FixedFile], *, write: bool) -> None:
    for one in fixed:
        if not one.is_read:
            continue
        if not write:
            print_copy("".join(_diff(one)))
        elif one.name == STANDARD_INPUT:
            print_copy(one.after)
        elif one.before != one.after:
            write_fixed(one)


def write_fixed(fixed: FixedFile) -> None:
    """Writes the file anew, whole or not at all. Raises ConfigError if it cannot be."""
    try:
        replace_file(Path(fixed.name).resolve(), fixed.after.encode(fixed.encoding))
    except OSError as exc:
        raise ConfigError(f"{fixed.name}: it cannot be written: {exc.strerror}") from exc


def replace_file(path: Path, content: bytes) -> None:
    """Puts a file with that content in place of the old one, whose owner and mode it has.

    Raises OSError, and then the old one stays.
    """
    with path.open("r+b") as file:  # which has to be writable
        old = os.fstat(file.fileno())
    if not stat.S_ISREG(old.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")
    descriptor, beside = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as new:
            new.write(content)
            new.flush()
            with contextlib.suppress(PermissionError):  # of somebody else's file
                os.fchown(new.fileno(), old.st_uid, old.st_gid)
            os.fchmod(new.fileno(), stat.S_IMODE(old.st_mode))
            os.fsync(new.fileno())
        Path(beside).replace(path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise


def _diff(fixed: FixedFile) -> Iterator[str]:
    before, after = _lines(fixed.before), _lines(fixed.after)
    name = "standard input" if fixed.name == STANDARD_INPUT else fixed.name
    for line in difflib.unified_diff(before, after, f"a/{name}", f"b/{name}"):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _lines(text: str) -> list[str]:
    """The lines as `patch` counts them: `\n` alone ends one."""
    return io.StringIO(text, newline="\n").readlines()
