"""The container image, really built twice and its files run: two minutes, and a minute more the first time.

The base is Debian with its own Python, not the one that the Dockerfile names, which cannot be fetched without a
container registry. All other steps are those of the Dockerfile.
"""

import asyncio
import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import msgspec
import pytest

import extender
from extender.cli.main import commands
from extender.config.reading import to_yaml
from extender.config.tree import Config
from testbed.embedded_registry import EmbeddedRegistry
from testbed.image_builder import EPOCH, Image, ImageBuilder
from testbed.processes import Process, free_port

PROJECT = Path(__file__).parents[2]
CONTEXT = ("Dockerfile", ".dockerignore", "LICENSE", "requirements.txt", "extender", "deploy/image")
READY_SECONDS = 60.0
GRACE_SECONDS = 30.0
ANYBODY = 65532
MOST_BYTES = 135_000_000
HOME = "opt/multiarch-extender"
READS_A_KUBECONFIG = """
import asyncio
from extender.cluster.configuration import import_library
import_library()
from kubernetes_asyncio import client, config
async def read():
    written = {
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    configuration = client.Configuration()
    await config.load_kube_config_from_dict(written, client_configuration=configuration)
    return configuration
configuration = asyncio.run(read())
assert configuration.host == "https://127.0.0.1:1"
assert any("Bearer t" in value for value in configuration.api_key.values())
"""


def test_the_image_says_how_to_run_it(image: Image) -> None:
    """Not as root, by number, with the command as its entry point, and under the package's own version."""
    assert image.config["User"] == f"{ANYBODY}:{ANYBODY}"
    assert (image.config["Entrypoint"], image.config["Cmd"]) == (["multiarch-extender"], ["serve"])
    assert set(image.config["ExposedPorts"]) == {"8443/tcp", "8881/tcp"}
    labels = image.config["Labels"]
    assert labels["org.opencontainers.image.version"] == extender.__version__
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert all(labels[f"org.opencontainers.image.{name}"] for name in ("title", "description", "url", "source"))


def test_the_image_holds_the_package_compiled_and_nothing_of_the_checkout_beside_it(image: Image) -> None:
    """Every module has its bytecode, which could not be written later; there are no tests and no caches."""
    home = image.root / HOME
    (package,) = home.glob("lib/python3.*/site-packages/extender")
    modules = {file.relative_to(PROJECT / "extender") for file in (PROJECT / "extender").rglob("*.py")}
    assert {file.relative_to(package) for file in package.rglob("*.py")} == modules
    compiled = {file.parent.parent / f"{file.name.split('.')[0]}.py" for file in package.rglob("__pycache__/*.pyc")}
    assert {file.relative_to(package) for file in compiled} == modules
    assert {entry.name for entry in home.iterdir()} == {"LICENSE", "bin", "include", "lib", "lib64", "pyvenv.cfg"}
    assert not (image.root / "src").exists()


@pytest.mark.slow  # it builds the image once more
def test_the_image_built_again_of_other_files_of_the_same_content_is_the_same(
    image: Image, builder: ImageBuilder, tmp_path: Path
) -> None:
    """From a checkout of other times and narrower rights: the layer and the image have the same digests."""
    for name in CONTEXT:
        source, copy = PROJECT / name, tmp_path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"), copy_function=shutil.copyfile)
        else:
            shutil.copyfile(source, copy)
    for path in [*(tmp_path / "extender").rglob("*"), *tmp_path.iterdir()]:
        path.chmod(0o700 if path.is_dir() else 0o600)
        os.utime(path, (1, 1))
    again = builder.build(tmp_path, "second")
    assert _states(again.root) == _states(image.root)
    assert (again.layers, again.digest) == (image.layers, image.digest)


def _states(root: Path) -> Mapping[str, tuple[int, int, int, int, str]]:
    """Rights, owner, time and content of every file, so that a difference can be read."""
    found = {}
    for path in [root, *root.rglob("*")]:
        state = path.lstat()
        if stat.S_ISLNK(state.st_mode):
            content = str(path.readlink())
        else:
            content = "" if path.is_dir() else str(hash(path.read_bytes()))
        found[str(path.relative_to(root))] = (state.st_mode, state.st_uid, state.st_gid, int(state.st_mtime), content)
    return found


def test_every_file_of_the_image_has_the_time_that_the_build_was_told(image: Image) -> None:
    """SOURCE_DATE_EPOCH; without it two builds would differ."""
    assert {int(path.lstat().st_mtime) for path in image.root.rglob("*")} == {EPOCH}


def test_the_image_has_no_shell_no_package_manager_and_one_layer_of_moderate_size(image: Image) -> None:
    """Whoever breaks in finds the interpreter and nothing else that can be run; size and layers are printed."""
    programs = {
        path.name for folder in ("bin", "sbin", "usr/bin", "usr/sbin") for path in (image.root / folder).glob("*")
    }
    assert {name for name in programs if not name.startswith("python3")} == set()
    assert {path.name for path in (image.root / HOME / "bin").iterdir()} & {"pip", "pip3"} == set()
    files = [path for path in image.root.rglob("*") if path.is_file() and not path.is_symlink()]
    unpacked = sum(path.stat().st_size for path in files)
    print(f"\nimage: {unpacked / 1e6:.1f} MB unpacked, {len(files):,} files, {len(image.layers)} layer: {image.layers}")
    assert len(image.layers) == 1
    assert unpacked <= MOST_BYTES


def test_scanners_find_what_the_image_is_made_of(image: Image) -> None:
    """The release of Debian, its packages as images without dpkg state them, and every distribution that is pinned."""
    packages = {path.name for path in (image.root / "var/lib/dpkg/status.d").iterdir()}
    assert {"libc6", "libssl3", "libsqlite3-0", "ca-certificates"} <= packages
    assert not packages & {"dash", "bash", "dpkg", "apt", "python3-pip"}
    for path in (image.root / "var/lib/dpkg/status.d").iterdir():
        assert re.search(rf"(?ms)^Package: {re.escape(path.name)}\n.*^Version: ", path.read_text())
    assert "ID=debian" in (image.root / "etc/os-release").read_text()
    names = [path.name.removesuffix(".dist-info") for path in (image.root / HOME).glob("lib/*/*/*.dist-info")]
    pins = re.findall(r"^([a-z0-9.-]+)==(\S+) (; .*)?\\$", (PROJECT / "requirements.txt").read_text(), re.MULTILINE)
    wanted = {(_normalised(name), version) for name, version, condition in pins if not condition}
    assert wanted <= {(_normalised(name), version) for name, _, version in (each.partition("-") for each in names)}


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_nothing_in_the_image_belongs_to_the_user_it_runs_as(image: Image) -> None:
    """Nor may others write what is run, and no program gives its rights away."""
    files = [image.root, *image.root.rglob("*")]
    assert [file for file in files if file.lstat().st_uid != 0] == []
    writable = [file for file in files if not file.is_symlink() and file.stat().st_mode & 0o002]
    assert writable == [image.root / "tmp"]
    assert [file for file in files if file.lstat().st_mode & (stat.S_ISUID | stat.S_ISGID)] == []


def test_commands_work_on_a_read_only_file_system(image: Image) -> None:
    """They print what they print from this checkout."""
    for argument, printed in (
        ("--version", f"multiarch-extender {extender.__version__}\n"),
        ("config", to_yaml(Config())),
    ):
        done = subprocess.run(image.command(argument), capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, printed)


async def test_images_are_inspected_from_the_image(image: Image) -> None:
    """With a place for its cache that cannot be written, which costs no answer."""
    async with EmbeddedRegistry() as registry:
        registry.add_index("team/app", "1", ["linux/amd64", "linux/arm64"])
        plain = [f"--set=registry.plain_http=['{registry.host}']", f"--set=registry.allow=['{registry.host}']"]
        command = image.command("inspect", "-o", "json", *plain, f"{registry.host}/team/app:1")
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        printed, _ = await process.communicate()
    (found,) = msgspec.json.decode(printed)
    assert process.returncode == 0
    assert [each["platform"] for each in found["platforms"]] == ["linux/amd64", "linux/arm64"]


def test_every_command_starts_in_the_image(image: Image) -> None:
    """Each with the modules and the libraries that it loads; `--help` imports them."""
    for command in commands():
        done = subprocess.run(image.command(command, "--help"), capture_output=True, text=True, check=False)
        assert (command, done.returncode, done.stderr) == (command, 0, "")


def test_modules_that_are_imported_late_load_in_the_image(image: Image) -> None:
    """No library that an extension module needs was left out."""
    late = "extender.cluster.client, sqlite3, uvloop, cryptography.x509, redis.asyncio, ssl"
    run_script(image, f"import {late}; assert ssl.create_default_context().cert_store_stats()['x509_ca'] > 50")


def test_a_kubeconfig_is_read_in_the_image_without_the_models_that_it_lacks(image: Image) -> None:
    """The library's loader and its client, as the service uses them; the models would be 22 MB."""
    run_script(image, READS_A_KUBECONFIG)
    (library,) = (image.root / HOME).glob("lib/python3.*/site-packages/kubernetes_asyncio")
    kept = {
        str(path.relative_to(library)) for folder in ("models", "api") for path in library.glob(f"client/{folder}/*.py")
    }
    assert kept == {"client/models/__init__.py", "client/api/__init__.py"}


def run_script(image: Image, script: str) -> None:
    """Runs it by the image's interpreter; it must print nothing and succeed."""
    command = image.command()
    command[command.index("multiarch-extender")] = "/opt/multiarch-extender/bin/python3"
    done = subprocess.run([*command, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_service_runs_as_nobody_in_particular_and_ends_when_told(image: Image, tmp_path: Path) -> None:
    """Ready on a read-only file system, without root's identity and rights, and an orderly end on SIGTERM."""
    port = free_port()
    settings = ["cluster=none", "admission.listen=", "scheduler.listen=127.0.0.1:0"]
    settings += ["shutdown.grace_seconds=1", f"operations.listen=127.0.0.1:{port}"]
    command = image.command("serve", *(f"--set={setting}" for setting in settings))
    started = time.monotonic()
    process = Process("service", command, tmp_path / "service.log")
    try:
        process.wait_until(partial(_is_ready, port), READY_SECONDS)
        print(f"\nimage: ready {time.monotonic() - started:.2f} s after its start")
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
