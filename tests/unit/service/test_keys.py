"""The keys of one process."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from extender.errors import ConfigError
from extender.service.keys import load_keys, random_keys, watch_keys
from extender.watched_files import RELOADS

OLD, NEW = bytes(range(32)), bytes(range(1, 33))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A key file."""
    (tmp_path / "key").write_bytes(OLD)
    return tmp_path / "key"


def test_the_key_is_not_the_content_of_the_file(file: Path) -> None:
    """The same for every replica, and not shown."""
    keys = load_keys(str(file))
    assert keys == load_keys(str(file))
    assert keys.credential_ids != OLD
    assert len(keys.credential_ids) == 32
    assert repr(keys) == "Keys()"
    assert keys.__rich_repr__() == []
    file.write_bytes(NEW)
    other = load_keys(str(file))
    assert other.credential_ids != keys.credential_ids


def test_without_a_file_each_process_has_a_key_of_its_own() -> None:
    """So its ids mean nothing to another."""
    assert random_keys() != random_keys()


@pytest.mark.parametrize("content", [None, b"", b"x" * 31], ids=["gone", "empty", "short"])
def test_a_file_that_is_no_key_is_refused(file: Path, content: bytes | None) -> None:
    """With the setting and the file."""
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"^cache\.key_file: {file}"):
        watch_keys(str(file))


def test_a_new_key_takes_a_restart(file: Path) -> None:
    """It is said once for each change and counted; a file that is no key too; the old key is not worth a word."""
    files = watch_keys(str(file))
    used, counts = files.value, RELOADS["cache.key_file"]
    refused, loaded = counts["refused"].value, counts["loaded"].value
    with capture_logs() as lines:
        for content in (NEW, b"", OLD):
            file.write_bytes(content)
            for _ in range(3):
                files.reload_if_changed()
    assert [line["event"] for line in lines] == ["file.refused"] * 2
    assert ["restart to use" in line["why"] for line in lines] == [True, False]
    assert (counts["refused"].value, counts["loaded"].value) == (refused + 2, loaded)
    assert used == load_keys(str(file))
