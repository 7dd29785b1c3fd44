"""Files that somebody else names: refused if opening one could wait for ever, as a named pipe without a writer does."""

import errno
import stat
from pathlib import Path


def check_regular(path: str | Path) -> None:
    """Returns if the path, after links, is a regular file. Raises OSError with the path if it is not."""
    if not stat.S_ISREG(Path(path).stat().st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))


def read_file(path: str | Path, most_bytes: int = -1) -> bytes:
    """The file's content, `most_bytes` of it at most. Raises OSError, also if it is no regular file."""
    check_regular(path)
    with Path(path).open("rb") as file:
        return file.read(most_bytes)
