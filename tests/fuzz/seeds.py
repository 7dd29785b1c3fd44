"""The inputs that each fuzz target begins with: an archive per target, so that none is a file of its own here.

The input `dictionary` has the words from which the fuzzer composes others, as libFuzzer reads them.
`python -m tests.fuzz.seeds TARGET FILE…` adds inputs to a target's archive, or replaces those of the same name.
"""

import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


def archive_of(name: str) -> Path:
    """Returns the path of a target's archive."""
    return CORPUS / f"{name}.zip"


def read_seeds(name: str) -> Mapping[str, bytes]:
    """Returns a target's inputs by their name, in order."""
    with zipfile.ZipFile(archive_of(name)) as archive:
        return {member: archive.read(member) for member in sorted(archive.namelist())}


def write_seeds(name: str, inputs: Mapping[str, bytes]) -> None:
    """Writes a target's archive; the same inputs give the same bytes on every machine."""
    with zipfile.ZipFile(archive_of(name), "w", zipfile.ZIP_STORED) as archive:
        for member, data in sorted(inputs.items()):
            information = zipfile.ZipInfo(member)  # with the time 1980-01-01
            information.create_system, information.external_attr = 3, 0o644 << 16
            archive.writestr(information, data)


def main() -> None:
    """Adds the files that the command line names."""
    name, *files = sys.argv[1:]
    there = read_seeds(name) if archive_of(name).exists() else {}
    write_seeds(name, {**there, **{Path(file).name: Path(file).read_bytes() for file in files}})


if __name__ == "__main__":
    main()
