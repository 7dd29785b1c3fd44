"""Makes kubectl's plugin as a program that needs no Python: `python -m tools.release.frozen_plugin FOLDER`.

FOLDER gets `kubectl-multiarch-OS-ARCHITECTURE.tar.gz` for this machine: the program with its libraries in one folder,
and the licence. It is made only if the program answers `--version`, looks up an image, and serves.
"""

import asyncio
import gzip
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import packages_distributions
from pathlib import Path

import aiohttp
from packaging.utils import canonicalize_name

import extender
from testbed.embedded_registry import EmbeddedRegistry
from testbed.processes import free_port
from tools.release.pythons import PROJECT
from tools.release.requirement_pins import read_pins

NAME = "kubectl-multiarch"
_ARCHITECTURES: Mapping[str, str] = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_SECONDS = 600
_READY_SECONDS = 60.0


def archive_name() -> str:
    """Returns the name of the archive for this machine."""
    return f"{NAME}-{platform.system().lower()}-{_ARCHITECTURES[platform.machine()]}.tar.gz"


def left_out() -> Sequence[str]:
    """Returns the modules that are here for developers; some libraries would import them if they could."""
    ours = {canonicalize_name(name) for name in ("multiarch-extender", *(pin.name for pin in read_pins()))}
    owners = packages_distributions().items()
    others = {name for name, each in owners if not ours & {canonicalize_name(one) for one in each}}
    return sorted({"tkinter", *(name for name in others if name.isidentifier())})


def freeze(folder: Path) -> Path:
    """Makes the program below the folder; returns the folder with it and its libraries.

    Commands and templates are looked up by name when they are used, so that all of the package is taken. So is what
    unpacks zstd.
    """
    command = [sys.executable, "-m", "PyInstaller", "--noconfirm", "--clean", "--onedir", "--name", NAME]
    command += ["--log-level", "ERROR", "--collect-submodules", "extender", "--collect-data", "extender"]
    command += ["--hidden-import", "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"]
    command += [word for name in left_out() for word in ("--exclude-module", name)]
    for option, name in (("--distpath", "dist"), ("--workpath", "build"), ("--specpath", "spec")):
        command += [option, str(folder / name)]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    entry = PROJECT / "extender" / "__main__.py"
    subprocess.run([*command, str(entry)], check=True, env=environment, timeout=_SECONDS)
    return folder / "dist" / NAME


def try_out(program: Path) -> None:
    """Runs the program far enough that a missing module shows. Raises RuntimeError if it does not work."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()
    if said[-1:] != [extender.__version__]:
        raise RuntimeError(f"{program} says that it is {' '.join(said)}")
    asyncio.run(_look_up_and_serve(program))


async def _look_up_and_serve(program: Path) -> None:
    """Has the program inspect an image, and then runs its service until that is ready."""
    async with EmbeddedRegistry() as registry, asyncio.timeout(_READY_SECONDS), aiohttp.ClientSession() as session:
        registry.add_index("shop/web", "1.0", ["linux/amd64"])
        reach = f"--set=registry.plain_http=['{registry.host}']", f"--set=registry.allow=['{registry.host}']"
        command = [str(program), "inspect", f"{registry.host}/shop/web:1.0", *reach]
        looking = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said, _ = await looking.communicate()
        if looking.returncode:
            raise RuntimeError(f"{program} inspect failed:\n{said.decode()}")
        operations = f"127.0.0.1:{free_port()}"
        settings = ("cluster=none", "cache.url='memory:'", "scheduler.listen=127.0.0.1:0", "admission.listen=''",
                    f"operations.listen={operations}")  # fmt: skip
        service = await asyncio.create_subprocess_exec(program, "serve", *(f"--set={each}" for each in settings))
        try:
            while service.returncode is None and not await _is_ready(session, f"http://{operations}/readyz"):
                await asyncio.sleep(0.1)
        finally:
            if service.returncode is None:
                service.terminate()
        if await service.wait():
            raise RuntimeError(f"{program} serve failed")


async def _is_ready(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


def pack(folder: Path, archive: Path) -> None:
    """Writes the archive, of one owner and one time, sorted by name."""
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = epoch
        return entry

    with (
        archive.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=epoch) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as packed,
    ):
        packed.add(PROJECT / "LICENSE", "LICENSE", filter=plain)
        for path in sorted(folder.rglob("*")):
            packed.add(path, f"{NAME}/{path.relative_to(folder)}", recursive=False, filter=plain)


def main(arguments: Sequence[str]) -> int:
    """Makes the archive, and prints its size."""
    target = Path(arguments[0])
    target.mkdir(parents=True, exist_ok=True)
    archive = target / archive_name()
    with tempfile.TemporaryDirectory() as scratch:
        made = freeze(Path(scratch))
        try_out(made / NAME)
        pack(made, archive)
        unpacked = sum(path.stat().st_size for path in made.rglob("*") if path.is_file() and not path.is_symlink())
    print(f"{archive}: {archive.stat().st_size / 1e6:.1f} MB, {unpacked / 1e6:.1f} MB unpacked")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
