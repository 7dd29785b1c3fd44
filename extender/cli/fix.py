"""`fix`: gives manifests back with what the webhook would add, written into their pod templates."""

import difflib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from extender.cli.image_lookup import answer_of, look_up_images
from extender.cli.options import Assignments, ConfigFile
from extender.config.reading import read_config
from extender.config.tree import Config
from extender.errors import ConfigError
from extender.images.content import Content, Failure
from extender.logs import configure_logs
from extender.manifests.editing import read_document
from extender.manifests.fixing import RESOURCE_LIST, FixedTemplate, ManifestStream
from extender.manifests.stream import ManifestError
from extender.placement.affinity import AffinityMode
from extender.placement.facts import ImageFact, PodImage, fact_of
from extender.placement.patch import Json
from extender.placement.template_changes import TemplateMutator
from extender.service.operator_policies import admission_policy_of, policy_of

_STANDARD_INPUT = "-"
_SUFFIXES = (".yaml", ".yml", ".json")


class _Fixed(msgspec.Struct, frozen=True):
    """One file, before and after; `name` is `-` for the standard input."""

    name: str
    stream: ManifestStream
    before: str
    after: str
    findings: list[FixedTemplate]


def fix(
    files: Annotated[
        list[str],
        typer.Option("--filename", "-f", metavar="FILE", help="Manifests: a file, a folder, or - for standard input."),
    ],
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
    file: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Write into pod templates what the webhook would add to their pods: node affinity and tolerations.

    Prints a diff, unless --check or --write is given. What is not known is left as it is and said on standard error.
    Exit code 1 if a template was left as it is for that, or needs its author. A ResourceList on standard input is
    answered as a KRM function answers it.

    Example: helm template my-chart | multiarch-extender fix -f -
    """
    if check and write:
        raise ConfigError("--check and --write exclude each other: --check changes nothing")
    texts = list(_read(files))
    configured = [text for _, text in texts if RESOURCE_LIST in text]
    settings = read_config(file, [*_function_settings(configured), *(assignments or ()), "cache.url='memory:'"])
    configure_logs("error", "console")
    fixed = _fix_all(texts, settings, _mode(settings, node_affinity))
    gaps = [gap for one in fixed for gap in one.findings if _fails(gap, allow_unknown=allow_unknown)]
    for one in fixed:
        for line in _complaints(one):
            print(line, file=sys.stderr)
    if check:
        _print_changes(fixed)
    else:
        _give(fixed, write=write, allow_unknown=allow_unknown)
    if gaps or (check and any(one.before != one.after for one in fixed)):
        raise typer.Exit(1)


def _read(files: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The name and the text of each file, those of folders in the order of their names."""
    for name in files:
        if name == _STANDARD_INPUT:
            if not (raw := sys.stdin.buffer.read()):  # a chart that renders to nothing gives an empty line at least
                raise ConfigError("-f -: standard input is empty; see whether the command before it failed")
            yield name, _decoded(name, raw)
            continue
        for found in _files(Path(name)):
            try:
                yield str(found), _decoded(str(found), found.read_bytes())
            except OSError as exc:
                raise ConfigError(f"{found}: {exc.strerror}; -f takes a readable file of manifests") from exc


def _files(path: Path) -> Sequence[Path]:
    """The path itself, or the manifests in a folder and those below it. Raises ConfigError if there are none."""
    if not path.is_dir():
        return (path,)
    found = sorted(it for it in path.rglob("*") if it.suffix in _SUFFIXES and it.is_file())
    if not found:
        raise ConfigError(f"-f {path}: the folder has no file that ends in {', '.join(_SUFFIXES)}")
    return found


def _decoded(name: str, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{name}: it is not UTF-8, which manifests must be: {exc}") from exc


def _function_settings(texts: Sequence[str]) -> list[str]:
    """The settings in a KRM function's configuration: the data of a ConfigMap, each a `path: value` of the settings."""
    found = []
    for text in texts:
        try:
            document = read_document(text)
        except ManifestError:
            continue  # which is reported when the stream is read
        function = document.get("functionConfig") if isinstance(document, dict) else None
        data = function.get("data") if isinstance(function, dict) else None
        found += [f"{key}={value}" for key, value in data.items()] if isinstance(data, dict) else []
    return found


def _mode(settings: Config, chosen: AffinityMode | None) -> AffinityMode:
    if chosen is not None:
        return chosen
    configured = settings.admission.node_affinity
    return AffinityMode.REQUIRED if configured is AffinityMode.NONE else configured


def _fix_all(texts: Sequence[tuple[str, str]], settings: Config, mode: AffinityMode) -> list[_Fixed]:
    """Looks every image up once, then fixes each file. Raises ConfigError for a file that cannot be read or edited."""
    admission = msgspec.structs.replace(admission_policy_of(settings), node_affinity=mode, platforms_annotation=False)
    mutator = TemplateMutator(policy_of(settings), admission)
    streams = []
    for name, text in texts:
        try:
            streams.append(ManifestStream(text, mutator))
        except ManifestError as exc:
            raise ConfigError(f"{name}: {exc}") from exc
    references = list(dict.fromkeys(image.reference for stream in streams for image in stream.images))
    answers = [answer_of(each.answer) for each in look_up_images(references, settings)] if references else []
    known: Mapping[str, Content | Failure] = dict(zip(references, answers, strict=True))

    def facts_of(images: Sequence[PodImage]) -> list[ImageFact]:
        return [fact_of(image, known[image.reference], may_be_pending=False) for image in images]

    fixed = []
    for (name, text), stream in zip(texts, streams, strict=True):
        try:
            fixed.append(_Fixed(name, stream, text, *stream.fix(facts_of)))
        except ManifestError as exc:
            raise ConfigError(f"{name}: {exc}") from exc
    return fixed


def _fails(finding: FixedTemplate, *, allow_unknown: bool) -> bool:
    return bool(finding.change.warnings or (finding.change.unknown and not allow_unknown))


def _complaints(fixed: _Fixed) -> Iterator[str]:
    for finding in fixed.findings:
        where = f"{fixed.name}:{finding.line}: {finding.template}"
        for why in finding.change.unknown:
            yield f"{where} is left as it is: {why}"
        for why in finding.change.warnings:
            yield f"{where}: {why}"


def _print_changes(fixed: Sequence[_Fixed]) -> None:
    for one in fixed:
        for finding in one.findings:
            if finding.change.operations:
                what = ", ".join(finding.change.added) or "what an earlier pass of the webhook added"
                print(f"{one.name}:{finding.line}: {finding.template} lacks {what}")


def _give(fixed: Sequence[_Fixed], *, write: bool, allow_unknown: bool) -> None:
    for one in fixed:
        if one.stream.resource_list is not None and one.name == _STANDARD_INPUT:
            results = [
                result
                for finding in one.findings
                for result in _results(finding, fails=_fails(finding, allow_unknown=allow_unknown))
            ]
            sys.stdout.write(one.stream.with_results(one.after, results))
        elif not write:
            sys.stdout.writelines(_diff(one))
        elif one.name == _STANDARD_INPUT:
            sys.stdout.write(one.after)
        elif one.before != one.after:
            Path(one.name).write_bytes(one.after.encode())


def _results(finding: FixedTemplate, *, fails: bool) -> Iterator[dict[str, Json]]:
    """The results of a KRM function for one template."""
    template = finding.template
    reference: dict[str, Json] = {"apiVersion": template.api_version, "kind": template.kind, "name": template.name}
    if template.namespace:
        reference["namespace"] = template.namespace
    severity = "error" if fails else "warning"
    found = [(severity, f"left as it is: {why}") for why in finding.change.unknown]
    found += [(severity, why) for why in finding.change.warnings]
    found += [("info", f"added {what}") for what in finding.change.added]
    for level, message in found:
        yield {"message": message, "severity": level, "resourceRef": reference}


def _diff(fixed: _Fixed) -> Iterator[str]:
    before, after = fixed.before.splitlines(keepends=True), fixed.after.splitlines(keepends=True)
    name = "standard input" if fixed.name == _STANDARD_INPUT else fixed.name
    for line in difflib.unified_diff(before, after, f"a/{name}", f"b/{name}"):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
