"""Reads the objects of manifests from files, folders and standard input, as `kubectl apply -f` takes them."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from extender.cli.kustomizations import find_patches
from extender.errors import ConfigError
from extender.kubernetes.pod_templates import KubernetesObject, is_patch, named, pods_of
from extender.manifests.stream import ManifestError, decode_stream, read_stream
from extender.yaml_nodes import BYTE_ORDER_MARK

STANDARD_INPUT = "-"
_SUFFIXES = (".yaml", ".yml", ".json")
_NOTHING = re.compile(r"#.*|--- *#.*|%.*|\.\.\.|null|~")  # a line that gives no document


class ManifestFile(msgspec.Struct, frozen=True):
    """A file and its text; `name` is `-` for standard input. `problem` says why there is no text; empty if there is.

    `note` says of a patch that it is none of the objects.
    """

    name: str
    text: str
    encoding: str = "utf-8"
    problem: str = ""
    note: str = ""


class SourcedObject(msgspec.Struct, frozen=True):
    """An object and where it is from, such as `web.yaml, document 2`; a List's items share their document."""

    manifest: KubernetesObject
    source: str


class Manifests(msgspec.Struct, frozen=True):
    """The objects of some files, those of Lists included.

    `unread` has a line for each file that cannot be read to its end; `repeats` one for each key that is there twice,
    and `patches` one for each patch, which is no object.
    """

    objects: list[SourcedObject] = []
    unread: list[str] = []
    repeats: list[str] = []
    patches: list[str] = []


def read_manifests(paths: Sequence[str]) -> Manifests:
    """Every object in the files. `-` is standard input; a folder gives its manifests, sorted.

    Documents that are empty or no object of Kubernetes, such as a values file, give nothing; a pod that lacks its
    version alone counts.

    Raises:
        ConfigError: as `read_files`, or nothing can be read in any of them.
    """
    made = Manifests()
    for file in read_files(paths):
        if file.problem:
            made.unread.append(file.problem)
        elif file.note:
            made.patches.append(file.note)
        else:
            _read_objects(file, made)
    if made.unread and not made.objects:
        raise ConfigError("; ".join(made.unread))
    return made


def _read_objects(file: ManifestFile, made: Manifests) -> None:
    """Adds what is in the file."""
    try:
        for document in read_stream(file.text):
            source = f"{_shown(file.name)}, document {document.number}"
            document.check_object()
            for found in _objects_in(document.value):
                if is_patch(found):
                    made.patches.append(f"{source}: {named(found)} is a patch, and no object")
                else:
                    made.objects.append(SourcedObject(found, source))
            made.repeats.extend(f"{_shown(file.name)}: {each}" for each in document.repeats)
    except ManifestError as exc:
        made.unread.append(unread_line(file.name, exc))


def unread_line(name: str, problem: ManifestError) -> str:
    """What is said about a file that cannot be read."""
    return f"-f {_shown(name)}: it is no YAML of a manifest: {problem}"


def read_files(paths: Sequence[str]) -> list[ManifestFile]:
    """The files, those of a folder in the order of their names; `-` is standard input.

    Raises:
        ConfigError: a file cannot be opened; a folder has no manifests, or there is not a byte in all of a path, or
            nothing but comments. A chart that renders to nothing gives an empty line at least.
    """
    made = []
    for path in paths:
        files = [_read(file) for file in _files(path)]
        if not any(file.text or file.problem for file in files):
            raise ConfigError(f"-f {path}: {_shown(path)} is empty; see whether the command that wrote it failed")
        if all(_has_no_document(file.text) and not file.problem for file in files):
            raise ConfigError(f"-f {path}: {_shown(path)} has no objects")
        made += files
    patches = find_patches(Path(file.name) for file in made if file.name != STANDARD_INPUT)
    return [_noted(file, patches) for file in made]


def _has_no_document(text: str) -> bool:
    """Whether there is nothing, or nothing but comments."""
    text = text.removeprefix(BYTE_ORDER_MARK)
    lines = [line for each in text.splitlines() if (line := each.strip()) not in ("", "---")]
    return not text or (bool(lines) and all(_NOTHING.fullmatch(line) for line in lines))


def _noted(file: ManifestFile, patches: Mapping[Path, Path]) -> ManifestFile:
    if file.name == STANDARD_INPUT or not (by := patches.get(Path(file.name).resolve())):
        return file
    return msgspec.structs.replace(file, note=f"{file.name} is a patch that {by} names, and no object", problem="")


def _read(file: str) -> ManifestFile:
    try:
        data = sys.stdin.buffer.read() if file == STANDARD_INPUT else Path(file).read_bytes()
        return ManifestFile(file, *decode_stream(data))
    except OSError as exc:
        raise ConfigError(
            f"-f {file}: {exc.strerror}; give a file or folder of manifests, or - for standard input"
        ) from exc
    except ManifestError as exc:
        return ManifestFile(file, "", problem=unread_line(file, exc))


def _files(path: str) -> Sequence[str]:
    if path == STANDARD_INPUT or not Path(path).is_dir():
        return (path,)
    files = [str(each) for each in sorted(Path(path).rglob("*")) if each.suffix in _SUFFIXES and each.is_file()]
    if not files:
        raise ConfigError(f"-f {path}: the folder has no file that ends in {', '.join(_SUFFIXES)}")
    return files


def _objects_in(document: object) -> Iterator[KubernetesObject]:
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        return
    items = document.get("items")
    if document["kind"].endswith("List") and isinstance(items, list):
        for item in items:
            yield from _objects_in(item)
    elif "apiVersion" in document or pods_of(document):  # the API server would ask for the version
        yield document


def _shown(file: str) -> str:
    return "standard input" if file == STANDARD_INPUT else file
