"""The archive of kubectl's plugin: what is left out of it, and its bytes. Making the program is an end-to-end test."""

import tarfile
from pathlib import Path

import pytest

import extender
from tools.release.frozen_plugin import archive_name, left_out, pack, try_out


def test_what_only_developers_use_is_left_out() -> None:
    """And nothing that a pin of the image brings, nor the package itself."""
    names = set(left_out())
    assert {"pytest", "hypothesis", "mypy", "cyclonedx", "tkinter"} <= names
    assert not {"extender", "aiohttp", "yaml", "kubernetes_asyncio", "cryptography", "_cffi_backend"} & names


def made(folder: Path, mode: int) -> Path:
    """A folder of files as PyInstaller leaves it."""
    (folder / "_internal").mkdir(parents=True)
    for name in ("kubectl-multiarch", "_internal/b.so", "_internal/a.so"):
        (folder / name).write_text(name)
    (folder / "kubectl-multiarch").chmod(mode)
    return folder


def test_the_same_files_give_the_same_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever they were made; the program can be run and the licence is beside its folder."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1600000000")
    first, second = tmp_path / "first.tar.gz", tmp_path / "second.tar.gz"
    pack(made(tmp_path / "one", 0o755), first)
    pack(made(tmp_path / "two", 0o755), second)
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as packed:
        names = packed.getnames()
        program = packed.getmember("kubectl-multiarch/kubectl-multiarch")
    assert names == [
        "LICENSE",
        "kubectl-multiarch/_internal",
        "kubectl-multiarch/_internal/a.so",
        "kubectl-multiarch/_internal/b.so",
        "kubectl-multiarch/kubectl-multiarch",
    ]
    assert (program.mode & 0o777, program.uid, program.mtime) == (0o755, 0, 1600000000)


OTHER_VERSION = "echo kubectl-multiarch 0.0.0"
MODULE_MISSING = (
    f'[ "$1" = --version ] && echo multiarch-extender {extender.__version__} && exit; echo No module >&2; exit 1'
)


@pytest.mark.parametrize(("script", "said"), [(OTHER_VERSION, "says that it is"), (MODULE_MISSING, "No module")])
def test_a_program_that_does_not_work_is_no_release(tmp_path: Path, script: str, said: str) -> None:
    """Another version, or a module that was not found."""
    program = tmp_path / "kubectl-multiarch"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    with pytest.raises(RuntimeError, match=said):
        try_out(program)


def test_the_archive_is_named_as_krew_names_platforms() -> None:
    """Such as linux-amd64."""
    assert archive_name() in {
        f"kubectl-multiarch-{each}.tar.gz" for each in ("linux-amd64", "linux-arm64", "darwin-arm64")
    }
