"""The key of credential ids of one process."""

from pathlib import Path
from random import randbytes

import pytest

from extender.errors import ConfigError
from extender.service.keys import credential_key

OLD, NEW = bytes(range(32)), bytes(range(1, 33))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "key").write_bytes(OLD)
    return tmp_path / "key"


def test_the_key_is_not_the_content_of_the_file(file: Path) -> None:
    """The same for every replica."""
    key = credential_key(str(file), randbytes)
    assert key == credential_key(str(file), randbytes) != OLD
    assert len(key) == 32
    file.write_bytes(NEW)
    assert credential_key(str(file), randbytes) != key


def test_without_a_file_each_process_has_a_key_of_its_own() -> None:
    """So its ids mean nothing to another."""
    assert credential_key("", randbytes) != credential_key("", randbytes)


@pytest.mark.parametrize("content", [None, b"", b"x" * 31], ids=["gone", "empty", "short"])
def test_a_file_that_is_no_key_is_refused(file: Path, content: bytes | None) -> None:
    """With the setting and the file."""
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"^cache\.key_file: {file}"):
        credential_key(str(file), randbytes)
