"""What is no regular file is refused before it is opened."""

import os
from pathlib import Path

import pytest

from extender.credentials.cloud_api import read_token
from extender.credentials.providers import CredentialsUnavailable
from extender.regular_files import read_file


def test_a_regular_file_is_read_behind_links(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert read_file(tmp_path / "link") == b"content"
    assert read_file(str(tmp_path / "file"), 3) == b"con"


@pytest.mark.parametrize("name", ["pipe", "link", "folder", "/dev/zero"])
def test_anything_else_is_refused_with_its_path(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="it is no regular file") as caught:
        read_file(tmp_path / name)
    assert caught.value.filename == str(tmp_path / name)


async def test_a_token_that_is_a_pipe_is_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "token")
    with pytest.raises(CredentialsUnavailable, match="token cannot be read"):
        await read_token(str(tmp_path / "token"))
