"""Which files of manifests are patches: a kustomization beside or above them names them as such.

Nothing else of a kustomization is read, and nothing is built by it.
"""

import contextlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from extender.kubernetes.documents import list_at, value_at
from extender.manifests.stream import ManifestError, decode_stream, read_stream

_NAMES = ("kustomization.yaml", "kustomization.yml", "Kustomization")
_MOST_ABOVE = 32  # folders above a file
_BY_PATH = ("patches", "patchesJson6902")
_BY_NAME = "patchesStrategicMerge"


def find_patches(files: Iterable[Path]) -> dict[Path, Path]:
    """The files that kustomizations in the folders of these files, or above, name as patches; by which each is named.

    A kustomization that cannot be read names none.
    """
    folders = dict.fromkeys(folder for file in files for folder in islice(file.resolve().parents, _MOST_ABOVE))
    found: dict[Path, Path] = {}
    for folder in folders:
        for name in _NAMES:
            with contextlib.suppress(OSError, ManifestError):
                text, _ = decode_stream((folder / name).read_bytes())
                for document in read_stream(text):
                    for path in _paths_in(document.value):
                        with contextlib.suppress(OSError, RuntimeError, ValueError):  # a loop of links, or no name
                            found.setdefault((folder / path).resolve(), folder / name)
    return found


def _paths_in(kustomization: object) -> Iterator[str]:
    for key in _BY_PATH:
        paths = (value_at(each, "path") for each in list_at(kustomization, key))
        yield from (each for each in paths if isinstance(each, str))
    for each in list_at(kustomization, _BY_NAME):
        if isinstance(each, str) and "\n" not in each:  # else it is the patch itself
            yield each
