"""Builds container images without a container engine: with Debian's buildah, on a base that debootstrap makes.

Packages come from where apt's and pip's settings on this machine point; a base is kept in the cache folder. It needs
root, since the build's steps run in a chroot. Those for another architecture than this machine's are run by qemu.
"""

import ast
import configparser
import fcntl
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from testbed import with_arm64_programs
from testbed.debian_package import ProgramMissing, find_package

PROGRAMS = ("buildah", "debootstrap")
PACKAGES = ("ca-certificates", "python3", "python3-pip")
BASE = f"localhost/base:{'.'.join(PACKAGES)}"
ARM64_BASE = f"{BASE}.arm64"
BUILT = "localhost/built"
EPOCH = 1_600_000_000
"""What the builds are told of the time; another than the Dockerfile's default."""
_SECONDS = 1_200
_PLATFORM: tuple[list[str], list[str]] = ([], ["--platform", "linux/arm64"])  # whether it is for arm64


class BuildahMissing(Exception):
    """Images cannot be built here; the message says why in one line."""


class Image(NamedTuple):
    """A built image: its files, in a folder that this user can read, its Config, and what identifies its bytes."""

    root: Path
    config: Mapping[str, Any]  # Config of the OCI image specification
    layers: Sequence[str]  # digests of the layers' uncompressed archives
    digest: str  # of the manifest

    def command(self, *arguments: str) -> list[str]:
        """Returns the command that runs the image's entry point as its user, on its files only, read-only.

        What prepares that is of this machine, so that the image needs no program of its own for it.
        """
        isolated = 'mount --bind -o ro "$0" "$0" && exec "$@"'
        environment = [*self.config["Env"], "HOME=/"]  # container runtimes set it for a user without an account
        within = ["/usr/sbin/chroot", f"--userspec={self.config['User']}", "--groups=", str(self.root)]
        entered = ["/usr/bin/env", "-i", *environment, *within, *self.config["Entrypoint"]]
        return ["/usr/bin/unshare", "--mount", "bash", "-c", isolated, str(self.root), *entered, *arguments]


class ImageBuilder:
    """Builds images, which exist until the block that gave it ends."""

    def __init__(self, storage: "_Storage") -> None:
        self._storage = storage

    def build(self, context: Path, name: str, *, arm64: bool = False) -> Image:
        """Builds the image of the Dockerfile in `context`, with EPOCH as the time of the build.

        The first one for arm64, on a machine for amd64, makes a base in some minutes.

        Raises:
            subprocess.CalledProcessError: the build failed.
        """
        self._storage.build(context, f"{BUILT}/{name}", arm64=arm64)
        return self._storage.image(f"{BUILT}/{name}")

    def push_index(self, names: Sequence[str], reference: str) -> str:
        """Pushes an index of images that were built under these names, as `push` does; returns its digest there."""
        return self._storage.push_index([f"{BUILT}/{name}" for name in names], reference)

    def pack(self, files: Path, name: str, platform: str, entrypoint: str) -> None:
        """Makes an image of nothing but the files in that folder, which claims the platform.

        Raises:
            subprocess.CalledProcessError: buildah fails.
        """
        self._storage.pack(files, f"{BUILT}/{name}", platform, entrypoint)

    def push(self, name: str, reference: str, compression: str = "gzip") -> str:
        """Pushes the image that was built under that name to a registry on loopback; returns its digest there.

        Raises:
            subprocess.CalledProcessError: the registry refuses it.
        """
        return self._storage.push(f"{BUILT}/{name}", reference, compression)


@contextmanager
def image_builder() -> Iterator[ImageBuilder]:
    """Gives what builds images, one process at a time. The first use makes the base, in a minute.

    Raises:
        BuildahMissing: this is not root on Debian with a package archive.
    """
    require_programs(*PROGRAMS)
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "multiarch-extender" / "image"
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as running:
        lock = running.enter_context((folder / "lock").open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel releases it however this process ends
        storage = _Storage(folder)
        running.callback(storage.clear)
        storage.clear()  # left by a run that was killed
        storage.need_base()
        yield ImageBuilder(storage)


class _Storage:
    """buildah with a storage of its own."""

    def __init__(self, folder: Path) -> None:
        folders = ["--root", str(folder / "storage"), "--runroot", str(folder / "run")]
        self._buildah = ["buildah", *folders, "--storage-driver", "vfs"]

    def need_base(self, *, arm64: bool = False) -> str:
        """Returns the name of the base, which is made if it is missing."""
        base = ARM64_BASE if arm64 else BASE
        if base not in self._run("images", "--format", "{{.Name}}:{{.Tag}}").splitlines():
            self._make_base(base, arm64=arm64)
        return base

    def clear(self) -> None:
        self._run("rm", "--all")
        listed = self._run("images", "--all", "--format", "{{.ID}} {{.Name}}:{{.Tag}}").splitlines()
        if others := sorted({line.split()[0] for line in listed if line.split()[1] not in (BASE, ARM64_BASE)}):
            self._run("rmi", "--force", *others)

    def _make_base(self, base: str, *, arm64: bool) -> None:
        """Makes the base: Debian with Python and pip, of this machine's release."""
        container = self._run("from", *_PLATFORM[arm64], "scratch").strip()
        root = Path(self._run("mount", container).strip())
        packages = ["--variant=minbase", f"--include={','.join(PACKAGES)}"]
        command = ["debootstrap", *packages, _codename(), str(root), _archive()]
        if arm64:  # `container`: it is in a namespace where no device can be made
            command = [*_running_arm64(), "env", "container=lxc", command[0], "--arch=arm64", *command[1:]]
        _run(command)
        shutil.rmtree(root / "var/cache/apt/archives")
        self._run("commit", "--rm", container, base)

    def build(self, context: Path, name: str, *, arm64: bool) -> None:
        settings = ["--isolation", "chroot", "--layers=false", "--pull=never", "--timestamp", str(EPOCH)]
        settings += ["--from", self.need_base(arm64=arm64), "--build-arg", f"SOURCE_DATE_EPOCH={EPOCH}"]
        with tempfile.TemporaryDirectory() as folder:
            command = [*self._buildah, "build", *_PLATFORM[arm64], *settings, *_pip_volumes(Path(folder))]
            _run([*(_running_arm64() if arm64 else ()), *command, "--tag", name, str(context)])

    def pack(self, files: Path, name: str, platform: str, entrypoint: str) -> None:
        system, architecture = platform.split("/")
        container = self._run("from", "scratch").strip()
        self._run("add", container, str(files), "/")
        settings = ["--os", system, "--arch", architecture, "--entrypoint", f'["{entrypoint}"]']
        self._run("config", *settings, container)
        self._run("commit", "--rm", container, name)

    def push(self, name: str, reference: str, compression: str) -> str:
        settings = ["--tls-verify=false", "--compression-format", compression]
        with tempfile.NamedTemporaryFile("r") as digest:
            self._run("push", *settings, "--digestfile", digest.name, name, f"docker://{reference}")
            return digest.read().strip()

    def push_index(self, names: Sequence[str], reference: str) -> str:
        index = f"{BUILT}/index"
        self._run("manifest", "create", index, *(f"containers-storage:{name}" for name in names))
        with tempfile.NamedTemporaryFile("r") as digest:
            settings = ["--all", "--tls-verify=false", "--digestfile", digest.name]
            self._run("manifest", "push", *settings, index, f"docker://{reference}")
            self._run("manifest", "rm", index)
            return digest.read().strip()

    def image(self, name: str) -> Image:
        container = self._run("from", "--pull=never", name).strip()
        described: dict[str, Any] = msgspec.json.decode(self._run("inspect", "--type", "image", name))
        oci = described["OCIv1"]
        root = Path(self._run("mount", container).strip())
        return Image(root, oci["config"], oci["rootfs"]["diff_ids"], described["FromImageDigest"])

    def _run(self, *arguments: str) -> str:
        return _run([*self._buildah, *arguments])


def require_programs(*programs: str) -> None:
    """Installs the programs that are missing. Raises BuildahMissing if it cannot."""
    if os.geteuid() != 0:
        raise BuildahMissing("building images takes root")
    if not (missing := [program for program in programs if shutil.which(program) is None]):
        return
    if shutil.which("apt-get") is None:
        raise BuildahMissing(f"{' and '.join(missing)} are not here, nor apt-get to install them with")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", *missing]):
        try:
            subprocess.run(
                ["apt-get", "-qq", *command], check=True, capture_output=True, env=environment, timeout=_SECONDS
            )
        except subprocess.SubprocessError as exc:
            raise BuildahMissing(f"{' and '.join(missing)} cannot be installed: {exc}") from exc


def _running_arm64() -> list[str]:
    """Returns what stands before a command so that programs for arm64 run. Raises BuildahMissing."""
    if platform.machine() in ("aarch64", "arm64"):
        return []
    try:
        qemu = find_package("qemu-user-static") / "usr/bin/qemu-aarch64-static"
    except ProgramMissing as exc:
        raise BuildahMissing(str(exc)) from exc
    return [sys.executable, "-I", "-S", with_arm64_programs.__file__, str(qemu)]


def _codename() -> str:
    lines = Path("/etc/os-release").read_text().splitlines()
    fields = dict(line.replace('"', "").split("=", 1) for line in lines if "=" in line)
    if fields.get("ID") != "debian":
        raise BuildahMissing("the base is made of Debian's packages, and this is not Debian")
    return fields["VERSION_CODENAME"]


def _archive() -> str:
    """Returns the URL from which apt gets that release."""
    targets = _run(["apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages"])
    release = _codename()
    for line in targets.splitlines():
        name, _, address = line.partition(" ")
        if name == release:
            return address
    raise BuildahMissing(f"apt has no source of {release}")


def _pip_volumes(folder: Path) -> list[str]:
    """Returns mounts that give pip within the build this machine's settings and the files that they name.

    The settings are written into `folder`.
    """
    settings: dict[str, str] = {}
    listed = _run([sys.executable, "-m", "pip", "config", "list"]).splitlines()
    for line in sorted(listed, key=lambda each: each.startswith(":env:")):  # the environment overrides files
        name, _, value = line.partition("=")
        settings[name.rpartition(".")[2]] = ast.literal_eval(value)
    parser = configparser.RawConfigParser()
    parser["global"] = settings
    with (folder / "pip.conf").open("w") as file:
        parser.write(file)
    words = [word for value in settings.values() for word in value.split()]
    named = [word for word in words if word.startswith("/") and Path(word).exists()]
    mounts = [f"{folder / 'pip.conf'}:/etc/pip.conf:ro", *(f"{path}:{path}:ro" for path in named)]
    return [word for mount in mounts for word in ("--volume", mount)]


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    if done.returncode != 0:
        error = subprocess.CalledProcessError(done.returncode, command)
        error.add_note(f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        raise error
    return done.stdout
