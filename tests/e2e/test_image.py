"""The container image, really built and its files run: some twenty seconds, and a minute more the first time."""

import re
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest

import extender
from extender.config.reading import to_yaml
from extender.config.tree import Config
from testbed.processes import Process, free_port
from tests.e2e.buildah import BuildahMissing, Image, built_image

PROJECT = Path(__file__).parents[2]
READY_SECONDS = 60.0
GRACE_SECONDS = 30.0
ANYBODY = 65532


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """The image of this checkout."""
    try:
        with built_image(PROJECT) as built:
            yield built
    except BuildahMissing as exc:
        pytest.skip(str(exc))


def test_the_image_says_how_to_run_it(image: Image) -> None:
    """Not as root, by number, with the command as its entry point, and under the package's own version."""
    assert image.config["User"] == f"{ANYBODY}:{ANYBODY}"
    assert (image.config["Entrypoint"], image.config["Cmd"]) == (["multiarch-extender"], ["serve"])
    assert set(image.config["ExposedPorts"]) == {"8443/tcp", "8881/tcp"}
    labels = image.config["Labels"]
    assert labels["org.opencontainers.image.version"] == extender.__version__
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_the_image_holds_the_package_compiled_and_nothing_of_the_checkout_beside_it(image: Image) -> None:
    """Every module has its bytecode, which could not be written later; there are no tests and no caches."""
    home = image.root / "opt/multiarch-extender"
    (package,) = home.glob("lib/python3.*/site-packages/extender")
    modules = {file.relative_to(PROJECT / "extender") for file in (PROJECT / "extender").rglob("*.py")}
    assert {file.relative_to(package) for file in package.rglob("*.py")} == modules
    compiled = {file.parent.parent / f"{file.name.split('.')[0]}.py" for file in package.rglob("__pycache__/*.pyc")}
    assert {file.relative_to(package) for file in compiled} == modules
    assert {entry.name for entry in home.iterdir()} == {"LICENSE", "bin", "include", "lib", "lib64", "pyvenv.cfg"}
    assert not (image.root / "src").exists()


def test_nothing_in_the_image_belongs_to_the_user_it_runs_as(image: Image) -> None:
    """Nor may others write what is run: a service that is broken into cannot change itself."""
    files = [image.root / "opt", *(image.root / "opt").rglob("*")]
    assert [file for file in files if file.lstat().st_uid != 0] == []
    assert [file for file in files if not file.is_symlink() and file.stat().st_mode & 0o002] == []


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [(["--version"], f"multiarch-extender {extender.__version__}\n"), (["config"], to_yaml(Config()))],
    ids=["version", "config"],
)
def test_commands_work_on_a_read_only_file_system(image: Image, arguments: list[str], printed: str) -> None:
    """They print what they print from this checkout."""
    done = subprocess.run(image.command(*arguments), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, printed)


def test_the_service_runs_as_nobody_in_particular_and_ends_when_told(image: Image, tmp_path: Path) -> None:
    """Ready on a read-only file system, without root's identity and rights, and an orderly end on SIGTERM."""
    port = free_port()
    settings = ["cluster.mode=none", "admission.listen=", "scheduler.listen=127.0.0.1:0"]
    settings += ["shutdown.grace_seconds=1", "shutdown.linger_seconds=0.1", f"operations.listen=127.0.0.1:{port}"]
    command = image.command("serve", *(f"--set={setting}" for setting in settings))
    process = Process("service", command, tmp_path / "service.log")
    try:
        process.wait_until(partial(_is_ready, port), READY_SECONDS)
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
        (mounted,) = re.findall(r" / \S+ (\S+)", Path(f"/proc/{process.pid}/mounts").read_text())
    finally:
        process.stop(GRACE_SECONDS)
    assert {status["Uid"], status["Gid"]} == {"\t".join([str(ANYBODY)] * 4)}
    assert (status["Groups"].split(), int(status["CapEff"], 16)) == ([], 0)
    assert "ro" in mounted.split(",")
    assert '"service.stopped"' in process.log.read_text()


def _is_ready(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as response:
            return bool(response.read() == b"ok\n")
    except OSError:
        return False
