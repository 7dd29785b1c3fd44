"""Reads the objects of manifests from files, folders and standard input, as `kubectl apply -f` takes them."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from extender.bounded_yaml import InvalidYaml, read_documents
from extender.errors import ConfigError
from extender.kubernetes.pod_templates import KubernetesObject, pods_of

STANDARD_INPUT = "-"
_SUFFIXES = (".yaml", ".yml", ".json")


class SourcedObject(msgspec.Struct, frozen=True):
    """An object and where it is from, such as `web.yaml, document 2`; a List's items share their document."""

    manifest: KubernetesObject
    source: str


def read_manifests(paths: Sequence[str]) -> Iterator[SourcedObject]:
    """Every object in the files, those of Lists included. `-` is standard input; a folder gives its manifests, sorted.

    Documents that are empty or no object of Kubernetes, such as a values file, give nothing; a pod that lacks its
    version alone counts.

    Raises:
        ConfigError: as `read_texts`, or it is not YAML; names the file and the document.
    """
    for file, text in read_texts(paths):
        for number, document in _documents(file, text):
            for found in _objects_in(document):
                yield SourcedObject(found, f"{_shown(file)}, document {number}")


def read_texts(paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The name and the text of each file, those of a folder in the order of their names; `-` is standard input.

    Raises:
        ConfigError: a file cannot be read, or is not UTF-8; a folder has no manifests, or there is not a byte in all of
            a path. A chart that renders to nothing gives an empty line at least.
    """
    for path in paths:
        texts = [(file, _read(file)) for file in _files(path)]
        if not any(text for _, text in texts):
            raise ConfigError(f"-f {path}: {_shown(path)} is empty; see whether the command that wrote it failed")
        yield from texts


def _read(file: str) -> str:
    try:
        return (sys.stdin.buffer.read() if file == STANDARD_INPUT else Path(file).read_bytes()).decode()
    except OSError as exc:
        raise ConfigError(
            f"-f {file}: {exc.strerror}; give a file or folder of manifests, or - for standard input"
        ) from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"-f {_shown(file)}: it is no text in UTF-8, which manifests must be") from exc


def _files(path: str) -> Sequence[str]:
    if path == STANDARD_INPUT or not Path(path).is_dir():
        return (path,)
    files = [str(each) for each in sorted(Path(path).rglob("*")) if each.suffix in _SUFFIXES and each.is_file()]
    if not files:
        raise ConfigError(f"-f {path}: the folder has no file that ends in {', '.join(_SUFFIXES)}")
    return files


def _documents(file: str, text: str) -> Iterator[tuple[int, object]]:
    """The documents of a file, counted from 1."""
    try:
        for number, document in enumerate(read_documents(text), 1):
            yield number, _plain(document)
    except InvalidYaml as exc:
        raise ConfigError(f"-f {_shown(file)}: it is no YAML of a manifest: {exc}") from exc


def _plain(value: object) -> object:
    """The value as JSON has it: keys and other scalars as texts."""
    if isinstance(value, dict):
        return {_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _key(key: object) -> str:
    return key if isinstance(key, str) else json.dumps(key, default=str)


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
