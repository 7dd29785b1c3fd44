"""Builds etcd, kube-apiserver and kube-scheduler of pinned versions from their Go modules, once, into a cache folder.

The modules are pinned in `testbed/pins`; `control_plane.py` runs the programs. `python -m testbed.binaries` builds what
is missing and prints the paths. Kubernetes is the newest release pinned, or the one that the environment variable K8S
names (`K8S=1.34`); one etcd serves them all.

`python -m testbed.binaries PROGRAM…` builds what only some tests need as well, such as those with controllers or with
real nodes (`testbed/nodes`).
"""

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

MODULES = Path(__file__).with_name("pins")
ASSETS = "; or set KUBEBUILDER_ASSETS to a folder that holds etcd, kube-apiserver and kube-scheduler"
CONTROL_PLANE = "controlplane"
PINNED = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off"}


class BinariesMissing(RuntimeError):
    """The programs are missing and cannot be built; the message says what to install or set."""


class Binaries(NamedTuple):
    """The paths of the three programs."""

    etcd: Path
    kube_apiserver: Path
    kube_scheduler: Path


class GoModule(msgspec.Struct, frozen=True, kw_only=True):
    """One pinned Go module: its folder under `MODULES`, the dependency that gives the version, and what to build.

    `room` is the folder of the cache that it is built into.
    """

    name: str
    dependency: str
    programs: Mapping[str, str]  # file name -> Go package
    release: str = ""  # a folder within the module's, where several releases are pinned
    stamps: tuple[str, ...] = ()  # packages whose gitVersion, gitMajor and gitMinor are set as upstream's build does
    tags: tuple[str, ...] = ()  # of the build
    files: tuple[str, ...] = ()  # of the dependency's folder, which are put beside the programs
    room: str = CONTROL_PLANE

    @property
    def folder(self) -> Path:
        """The folder that holds its go.mod and go.sum."""
        return MODULES / self.name / self.release

    @property
    def version(self) -> str:
        """The version that go.mod requires, such as v1.36.3."""
        found = re.search(rf"{re.escape(self.dependency)} (v\S+)", (self.folder / "go.mod").read_text())
        if found is None:
            raise BinariesMissing(f"{self.folder / 'go.mod'} does not require {self.dependency}")
        return found[1]

    @property
    def flags(self) -> str:
        """The linker's flags: leave out symbols, and set the version, which is v0.0.0 in Kubernetes otherwise."""
        major, minor = self.version.removeprefix("v").split(".")[:2]
        values = {"gitVersion": self.version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
        stamps = [f"-X {package}.{name}={value}" for package in self.stamps for name, value in values.items()]
        return " ".join(["-s", "-w", *stamps])

    @property
    def key(self) -> str:
        """The name of its folder in the cache. It changes with the pins, the checksums and the flags."""
        pins = [(self.folder / name).read_bytes() for name in ("go.mod", "go.sum")]
        options = [self.flags, repr(dict(self.programs)), *self.tags, *self.files]
        digest = hashlib.sha256(b"\0".join([*pins, *(option.encode() for option in options)]))
        return f"{self.name}-{self.version}-{digest.hexdigest()[:12]}"


ETCD = GoModule(name="etcd", dependency="go.etcd.io/etcd/server/v3", programs={"etcd": "go.etcd.io/etcd/server/v3"})
STAMPS = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
KUBERNETES: Mapping[str, GoModule] = {
    release: GoModule(
        name="kubernetes",
        dependency="k8s.io/kubernetes",
        programs={name: f"k8s.io/kubernetes/cmd/{name}" for name in ("kube-apiserver", "kube-scheduler")},
        release=release,
        stamps=STAMPS,
    )
    for release in ("1.36", "1.35", "1.34")
}
NEWEST = KUBERNETES["1.36"]
CONTAINERD = GoModule(
    name="containerd",
    dependency="github.com/containerd/containerd/v2",
    programs={
        name: f"github.com/containerd/containerd/v2/cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2")
    },
    tags=("no_btrfs", "no_zfs", "no_devmapper"),
    room="nodes",
)
KARPENTER = GoModule(
    name="karpenter",
    dependency="sigs.k8s.io/karpenter",
    programs={"karpenter": "sigs.k8s.io/karpenter/kwok"},
    files=(
        "kwok/apis/crds/karpenter.kwok.sh_kwoknodeclasses.yaml",
        "pkg/apis/crds/karpenter.sh_nodeclaims.yaml",
        "pkg/apis/crds/karpenter.sh_nodeoverlays.yaml",
        "pkg/apis/crds/karpenter.sh_nodepools.yaml",
    ),
    room="autoscalers",
)
HELM = GoModule(
    name="helm",
    dependency="helm.sh/helm/v4",
    programs={"helm": "helm.sh/helm/v4/cmd/helm"},
    release="4",
    room="charts",
)
HELM_3 = msgspec.structs.replace(
    HELM, dependency="helm.sh/helm/v3", programs={"helm": "helm.sh/helm/v3/cmd/helm"}, release="3"
)
KUBECTL = GoModule(
    name="kubectl",
    dependency="k8s.io/kubernetes",
    programs={"kubectl": "k8s.io/kubernetes/cmd/kubectl"},
    stamps=STAMPS,
    room="clients",
)
ACTIONLINT = GoModule(
    name="actionlint",
    dependency="github.com/rhysd/actionlint",
    programs={"actionlint": "github.com/rhysd/actionlint/cmd/actionlint"},
    room="pipelines",
)
KIND = GoModule(
    name="kind",
    dependency="sigs.k8s.io/kind",
    programs={"kind": "sigs.k8s.io/kind"},
    room="pipelines",
)
KREW = GoModule(
    name="krew",
    dependency="sigs.k8s.io/krew",
    programs={"validate-krew-manifest": "sigs.k8s.io/krew/cmd/validate-krew-manifest"},
    room="pipelines",
)
COSIGN = GoModule(
    name="cosign",
    dependency="github.com/sigstore/cosign/v3",
    programs={"cosign": "github.com/sigstore/cosign/v3/cmd/cosign"},
    room="pipelines",
)
CONTAINERS_IMAGE = GoModule(
    name="containers-image",
    dependency="go.podman.io/image/v5",
    programs={"registries": "."},
    room="nodes",
)
PULL_SECRETS = msgspec.structs.replace(NEWEST, programs={"pull-secrets": "."}, room="nodes")
"""What the kubelet reads in pull secrets."""
READ_MANIFESTS = msgspec.structs.replace(NEWEST, programs={"read-manifests": "./manifests"}, room="clients")
"""What kubectl reads in manifests."""
KUEUE = GoModule(
    name="kueue",
    dependency="sigs.k8s.io/kueue",
    programs={"kueue": "sigs.k8s.io/kueue/cmd/kueue", "podsets": "."},
    files=(
        *(
            f"config/components/crd/bases/kueue.x-k8s.io_{plural}.yaml"
            for plural in (
                "admissionchecks", "clusterqueues", "cohorts", "localqueues", "multikueueclusters", "multikueueconfigs",
                "provisioningrequestconfigs", "resourceflavors", "topologies", "workloadpriorityclasses", "workloads",
            )
        ),
        "config/components/webhook/manifests.yaml",
    ),
    room="queues",
)  # fmt: skip
QUEUED_KINDS = tuple(
    msgspec.structs.replace(KUEUE, dependency=dependency, programs={}, files=(file,))
    for dependency, file in (
        ("sigs.k8s.io/jobset", "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"),
        ("sigs.k8s.io/lws", "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml"),
        ("github.com/kubeflow/training-operator", "manifests/base/crds/kubeflow.org_pytorchjobs.yaml"),
        ("github.com/ray-project/kuberay/ray-operator", "config/crd/bases/ray.io_rayclusters.yaml"),
    )
)
"""The definitions of kinds that Kueue plans, from the modules that Kueue is built with."""
CONTROLLER_MANAGER = "kube-controller-manager"


def chosen_kubernetes(environment: Mapping[str, str] = os.environ) -> GoModule:
    """Returns the release that K8S names, or the newest. Raises BinariesMissing for one that is not pinned."""
    if not (release := environment.get("K8S")):
        return NEWEST
    if release not in KUBERNETES:
        raise BinariesMissing(f"K8S is {release}, but the releases pinned in {MODULES} are {', '.join(KUBERNETES)}")
    return KUBERNETES[release]


def find_binaries(environment: Mapping[str, str] = os.environ) -> Binaries:
    """Returns the three programs, from the folder KUBEBUILDER_ASSETS if it is set, else from the cache.

    Builds what the cache lacks; a first build takes minutes and says so on stderr.

    KUBEBUILDER_ASSETS usually has no kube-scheduler; then ours of the same minor version is used. If K8S names a
    release, KUBEBUILDER_ASSETS is ignored. Raises BinariesMissing.
    """
    if (assets := environment.get("KUBEBUILDER_ASSETS")) and not environment.get("K8S"):
        return _from_assets(Path(assets), environment)
    etcd, kubernetes = build(ETCD, environment), build(chosen_kubernetes(environment), environment)
    return Binaries(etcd / "etcd", kubernetes / "kube-apiserver", kubernetes / "kube-scheduler")


def find_controller_manager(environment: Mapping[str, str] = os.environ) -> Path:
    """Returns kube-controller-manager of the release that `find_binaries` finds; builds it if it is missing.

    KUBEBUILDER_ASSETS usually lacks it too; then ours of the same minor version is used. Raises BinariesMissing.
    """
    if not (assets := environment.get("KUBEBUILDER_ASSETS")) or environment.get("K8S"):
        kubernetes = chosen_kubernetes(environment)
    elif (found := Path(assets) / CONTROLLER_MANAGER).is_file():
        return found
    else:
        kubernetes = _pinned_like(Path(assets) / "kube-apiserver", CONTROLLER_MANAGER)
    return build(_with_program(kubernetes, CONTROLLER_MANAGER), environment) / CONTROLLER_MANAGER


def find_kubelet(environment: Mapping[str, str] = os.environ) -> Path:
    """Returns kubelet of the chosen Kubernetes, and builds it if it is missing. Raises BinariesMissing."""
    return build(_with_program(chosen_kubernetes(environment), "kubelet", "nodes"), environment) / "kubelet"


def find_karpenter(environment: Mapping[str, str] = os.environ) -> Path:
    """Returns the folder of Karpenter and its CRDs, and builds it if it is missing. Raises BinariesMissing."""
    return build(KARPENTER, environment)


def find_kueue(environment: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Returns the folders of Kueue, its definitions, and those of kinds that it plans; builds what is missing.

    Kueue's own is the first. Raises BinariesMissing.
    """
    return tuple(build(module, environment) for module in (KUEUE, *QUEUED_KINDS))


def find_built(module: GoModule, environment: Mapping[str, str] = os.environ) -> Path:
    """Returns the cache folder of the module's programs, which exists once they are built."""
    return cache_folder(environment) / module.room / module.key


def build(module: GoModule, environment: Mapping[str, str] = os.environ) -> Path:
    """Returns the cache folder that holds the module's programs, and builds them under a lock if they are missing."""
    folder = find_built(module, environment)
    if folder.is_dir():
        return folder
    go = shutil.which("go", path=environment.get("PATH"))
    if go is None:
        raise BinariesMissing(
            f"{' and '.join(module.programs)} must be built once, which needs Go 1.26 or later on the PATH"
            + (ASSETS if module.room == CONTROL_PLANE else "")
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent / f"{module.key}.lock"):
        if not folder.is_dir():  # another process may have built it during the wait for the lock
            _build_into(folder, module, go, environment)
    return folder


def _from_assets(folder: Path, environment: Mapping[str, str]) -> Binaries:
    for name in ("etcd", "kube-apiserver"):
        if not os.access(folder / name, os.X_OK):
            raise BinariesMissing(f"KUBEBUILDER_ASSETS is {folder}, which holds no program {name}")
    etcd, apiserver, scheduler = folder / "etcd", folder / "kube-apiserver", folder / "kube-scheduler"
    if scheduler.is_file():
        return Binaries(etcd, apiserver, scheduler)
    ours = build(_pinned_like(apiserver, "kube-scheduler"), environment)
    return Binaries(etcd, apiserver, ours / "kube-scheduler")


def _pinned_like(apiserver: Path, wanted: str) -> GoModule:
    """Returns the pinned Kubernetes of that program's minor version. Raises BinariesMissing if there is none."""
    version = subprocess.run([apiserver, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    ours = KUBERNETES.get(".".join(version.removeprefix("v").split(".")[:2]))
    if ours is None:
        raise BinariesMissing(f"kube-apiserver in {apiserver.parent} is {version}: put {wanted} {version} beside it")
    return ours


def _with_program(kubernetes: GoModule, name: str, room: str = CONTROL_PLANE) -> GoModule:
    """Returns the module with that program alone, which is built only for those who use it."""
    return msgspec.structs.replace(kubernetes, programs={name: f"k8s.io/kubernetes/cmd/{name}"}, room=room)


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Returns the folder under the user's cache for everything that is built or fetched once."""
    home = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "~")).expanduser() / ".cache"
    return Path(home) / "multiarch-extender"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the lock file. The kernel releases the lock however this process ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("waiting for the build that another process has begun")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build_into(folder: Path, module: GoModule, go: str, environment: Mapping[str, str]) -> None:
    """Builds in a folder beside the target and renames it, so that the target is complete whenever it exists."""
    started = time.monotonic()
    if module.programs:
        _say(f"building {' and '.join(module.programs)} {module.version} (some minutes, once)")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{module.key}-") as scratch:
        made = Path(scratch) / "programs"
        made.mkdir()
        for name, package in module.programs.items():
            _run_go(go, module, package, made / name, environment)
        if module.files:
            _copy_files(go, module, made, environment)
        made.rename(folder)
    _say(f"built {folder} in {time.monotonic() - started:.0f} s")


def _run_go(go: str, module: GoModule, package: str, output: Path, environment: Mapping[str, str]) -> None:
    """Builds one program and reports every hundredth package compiled.

    An error carries the last lines of the output.
    """
    command = ["nice", go, "build", "-v", "-trimpath", "-buildvcs=false", "-mod=readonly"]
    command += ["-tags", ",".join(module.tags), "-ldflags", module.flags, "-o", str(output), package]
    pinned = {**environment, **PINNED}
    last: deque[str] = deque(maxlen=20)
    with subprocess.Popen(command, cwd=module.folder, env=pinned, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for count, line in enumerate(process.stderr, 1):
            last.append(line)
            if count % 100 == 0:
                _say(f"  {output.name}: {count} steps")
    if process.returncode != 0:
        raise BinariesMissing(f"go build {package} failed in {module.folder}:\n{''.join(last)}")


def _copy_files(go: str, module: GoModule, folder: Path, environment: Mapping[str, str]) -> None:
    """Copies the module's files from the folder into which Go has put the dependency."""
    command = [go, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", module.dependency]
    done = subprocess.run(
        command, cwd=module.folder, env={**environment, **PINNED}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BinariesMissing(f"go list {module.dependency} failed in {module.folder}:\n{done.stderr}")
    for name in module.files:
        shutil.copyfile(Path(done.stdout.strip()) / name, folder / Path(name).name)


def _say(text: str) -> None:
    print(f"programs: {text}", file=sys.stderr, flush=True)


OTHERS: Mapping[str, Callable[[], Path]] = {
    CONTROLLER_MANAGER: find_controller_manager,
    "kubelet": find_kubelet,
    "containerd": lambda: build(CONTAINERD),
    "karpenter": find_karpenter,
    "kueue": lambda: find_kueue()[0],
    "helm": lambda: build(HELM),
    "helm3": lambda: build(HELM_3),
    "kubectl": lambda: build(KUBECTL),
    "actionlint": lambda: build(ACTIONLINT),
    "kind": lambda: build(KIND),
    "krew": lambda: build(KREW),
    "cosign": lambda: build(COSIGN),
    "containers-image": lambda: build(CONTAINERS_IMAGE),
    "pull-secrets": lambda: build(PULL_SECRETS),
    "read-manifests": lambda: build(READ_MANIFESTS),
}
"""What only some tests need, by the names that the command line takes."""


def main() -> int:
    """Builds what is missing and prints the paths; returns the exit code."""
    parser = argparse.ArgumentParser(description="Builds the programs that the tests run, into the cache folder, once.")
    # Not `choices`: argparse of Python 3.11 asks whether the empty list of no arguments is one of them.
    parser.add_argument("more", nargs="*", metavar="PROGRAM", help=" or ".join(OTHERS))
    parser.add_argument("--only", action="store_true", help="without the control plane's programs")
    arguments = parser.parse_args()
    chosen: list[str] = arguments.more
    unknown = [name for name in chosen if name not in OTHERS]
    if unknown:
        parser.error(f"{unknown[0]} is no program; there is {', '.join(OTHERS)}")
    try:
        always = () if arguments.only else find_binaries()
        binaries = [*always, *(OTHERS[name]() for name in chosen)]
    except BinariesMissing as exc:
        _say(str(exc))
        return 1
    print("\n".join(str(path) for path in binaries))
    return 0


if __name__ == "__main__":
    sys.exit(main())
