"""Where the control plane's programs come from: the cache, a build, or KUBEBUILDER_ASSETS."""

import io
import shutil
import subprocess
import sys
from pathlib import Path
from typing import IO

import msgspec
import pytest

from testbed import binaries
from testbed.binaries import (
    CONTAINERD,
    ETCD,
    HELM,
    HELM_3,
    KARPENTER,
    KUBECTL,
    KUBERNETES,
    NEWEST,
    BinariesMissing,
    GoModule,
    build,
    chosen_kubernetes,
    find_binaries,
    find_controller_manager,
    find_karpenter,
    find_kubelet,
)


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """A folder with a `go` that writes its arguments into the file it is asked to build, and counts its runs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "go"
    script.write_text(
        '#!/bin/sh\necho run >> "$HOME/runs"\n'
        'while [ "$1" != -o ]; do [ "$1" = -ldflags ] && flags=$2; shift; done\n'
        'mkdir -p "$(dirname "$2")" && echo "$3 $GOTOOLCHAIN $flags" > "$2"\n'
    )
    script.chmod(0o755)
    return folder


class ClosingWhenTold(io.StringIO):
    """A standard error that closes `pipe` as soon as something is said on it."""

    def __init__(self, pipe: IO[bytes]) -> None:
        super().__init__()
        self.pipe = pipe

    def write(self, text: str) -> int:
        self.pipe.close()
        return super().write(text)


def environment(tmp_path: Path, *folders: Path) -> dict[str, str]:
    """An environment whose cache is under `tmp_path` and whose PATH finds the shell's commands and those folders."""
    return {"HOME": str(tmp_path), "PATH": ":".join([*map(str, folders), "/usr/bin", "/bin"])}


def without_go(tmp_path: Path) -> dict[str, str]:
    """An environment in which no Go is found."""
    return {"HOME": str(tmp_path), "PATH": str(tmp_path)}


def executable(path: Path, prints: str = "") -> Path:
    """A program that prints that text."""
    path.write_text(f"#!/bin/sh\necho '{prints}'\n")
    path.chmod(0o755)
    return path


def test_programs_are_built_once_into_the_cache(tmp_path: Path, go: Path) -> None:
    """Two modules, three programs, three runs of Go; a second call finds them all and runs nothing."""
    found = find_binaries(environment(tmp_path, go))
    assert found == find_binaries(environment(tmp_path, go))
    assert (tmp_path / "runs").read_text().count("run") == 3
    assert [path.name for path in found] == ["etcd", "kube-apiserver", "kube-scheduler"]
    assert all(path.is_relative_to(tmp_path / ".cache" / "multiarch-extender" / "controlplane") for path in found)


def test_kubernetes_is_stamped_with_the_pinned_version(tmp_path: Path, go: Path) -> None:
    """Without the stamps it would call itself v0.0.0; the toolchain is never exchanged for a downloaded one."""
    built = (build(NEWEST, environment(tmp_path, go)) / "kube-scheduler").read_text()
    assert built.startswith("k8s.io/kubernetes/cmd/kube-scheduler local -s -w ")
    assert f"-X k8s.io/component-base/version.gitVersion={NEWEST.version}" in built
    assert f"-X k8s.io/component-base/version.gitMinor={NEWEST.version.split('.')[1]}" in built


def test_the_cache_home_is_the_users_choice(tmp_path: Path, go: Path) -> None:
    """XDG_CACHE_HOME is honoured."""
    home = tmp_path / "elsewhere"
    assert build(ETCD, {**environment(tmp_path, go), "XDG_CACHE_HOME": str(home)}).is_relative_to(home)


def test_the_controller_manager_is_built_only_when_it_is_asked_for(tmp_path: Path, go: Path) -> None:
    """Of the release that the control plane has."""
    here = {**environment(tmp_path, go), "K8S": "1.35"}
    assert "kube-controller-manager" not in [path.name for path in find_binaries(here).kube_apiserver.parent.iterdir()]
    built = find_controller_manager(here)
    assert built.read_text().startswith("k8s.io/kubernetes/cmd/kube-controller-manager local -s -w ")
    assert built.parent.name.startswith(f"kubernetes-{KUBERNETES['1.35'].version}-")


def test_the_controller_manager_of_assets_is_theirs_or_ours_of_the_same_minor(tmp_path: Path, go: Path) -> None:
    """envtest's folders have none."""
    executable(tmp_path / "kube-apiserver", "Kubernetes v1.35.99")
    here = {**environment(tmp_path, go), "KUBEBUILDER_ASSETS": str(tmp_path)}
    assert find_controller_manager(here).parent.name.startswith(f"kubernetes-{KUBERNETES['1.35'].version}-")
    theirs = executable(tmp_path / "kube-controller-manager")
    assert find_controller_manager(here) == theirs


def test_a_controller_manager_that_cannot_be_built_is_said_to_be_missing(tmp_path: Path) -> None:
    """In one line, as the reason of a skipped test."""
    with pytest.raises(BinariesMissing, match=r"^kube-controller-manager must be built once, which needs Go 1\.26.*$"):
        find_controller_manager(without_go(tmp_path))


def test_kubelet_is_built_of_the_chosen_release(tmp_path: Path, go: Path) -> None:
    """A node of another minor version than its control plane would test something else."""
    built = find_kubelet({**environment(tmp_path, go), "K8S": "1.34"})
    assert built.parent.name.startswith(f"kubernetes-{KUBERNETES['1.34'].version}-")


def test_files_of_a_module_are_put_beside_its_programs(tmp_path: Path, go: Path) -> None:
    """Karpenter's CRDs are those of the Karpenter that is built."""
    module = tmp_path / "module"
    for name in KARPENTER.files:
        (module / name).parent.mkdir(parents=True, exist_ok=True)
        (module / name).write_text(name)
    built = (go / "go").read_text()
    (go / "go").write_text(built.replace("#!/bin/sh\n", f"#!/bin/sh\n[ $1 = list ] && echo {module} && exit\n"))
    folder = find_karpenter(environment(tmp_path, go))
    names = {Path(name).name: name for name in KARPENTER.files}
    assert {path.name for path in folder.iterdir()} == {"karpenter", *names}
    assert {name: (folder / name).read_text() for name in names} == names


def test_a_failed_build_leaves_nothing_and_says_what_go_said(tmp_path: Path, go: Path) -> None:
    """No half-filled folder is ever taken for a finished one."""
    (go / "go").write_text("#!/bin/sh\necho 'no required module provides package' >&2\nexit 1\n")
    with pytest.raises(BinariesMissing, match="no required module provides package"):
        build(ETCD, environment(tmp_path, go))
    cache = tmp_path / ".cache" / "multiarch-extender" / "controlplane"
    assert [path.name for path in cache.iterdir()] == [f"{ETCD.key}.lock"]


def test_a_build_waits_for_another_process_and_uses_its_result(
    tmp_path: Path, go: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever finds the lock taken says that it waits, then finds the folder there and does not build."""
    folder = tmp_path / ".cache" / "multiarch-extender" / "controlplane" / ETCD.key
    folder.parent.mkdir(parents=True)
    holder = subprocess.Popen(
        ["flock", str(folder.parent / f"{ETCD.key}.lock"), "sh", "-c", 'echo held; read _; mkdir "$0"', str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    said = ClosingWhenTold(holder.stdin)
    monkeypatch.setattr(sys, "stderr", said)
    assert build(ETCD, environment(tmp_path, go)) == folder
    holder.stdout.close()
    assert holder.wait() == 0
    assert "waiting for the build" in said.getvalue()
    assert not (tmp_path / "runs").exists()


def test_without_go_the_message_says_what_to_do(tmp_path: Path) -> None:
    """Nothing cached, no Go, no KUBEBUILDER_ASSETS: the two ways out are named."""
    with pytest.raises(BinariesMissing, match=r"needs Go 1\.26 or later on the PATH; or set KUBEBUILDER_ASSETS"):
        find_binaries(without_go(tmp_path))


def test_a_cached_program_needs_no_go(tmp_path: Path, go: Path) -> None:
    """A machine without Go can use a cache it was handed."""
    find_binaries(environment(tmp_path, go))
    assert find_binaries(without_go(tmp_path)).etcd.is_file()


def test_assets_are_used_as_they_are(tmp_path: Path) -> None:
    """A folder with all three programs is taken, without a look at versions, Go or the cache."""
    for name in ("etcd", "kube-apiserver", "kube-scheduler"):
        executable(tmp_path / name)
    found = find_binaries({**without_go(tmp_path), "KUBEBUILDER_ASSETS": str(tmp_path)})
    assert found == (tmp_path / "etcd", tmp_path / "kube-apiserver", tmp_path / "kube-scheduler")


def test_assets_without_a_scheduler_get_ours_if_the_minor_version_agrees(tmp_path: Path, go: Path) -> None:
    """envtest's folders have no kube-scheduler."""
    executable(tmp_path / "etcd")
    executable(tmp_path / "kube-apiserver", f"Kubernetes {NEWEST.version.rsplit('.', 1)[0]}.99")
    found = find_binaries({**environment(tmp_path, go), "KUBEBUILDER_ASSETS": str(tmp_path)})
    assert found.kube_apiserver == tmp_path / "kube-apiserver"
    assert found.kube_scheduler == build(NEWEST, environment(tmp_path, go)) / "kube-scheduler"


def test_assets_of_another_version_need_their_own_scheduler(tmp_path: Path) -> None:
    """A scheduler newer than its API server is not supported upstream."""
    executable(tmp_path / "etcd")
    executable(tmp_path / "kube-apiserver", "Kubernetes v1.30.1")
    with pytest.raises(BinariesMissing, match=r"put kube-scheduler v1\.30\.1 beside it"):
        find_binaries({**without_go(tmp_path), "KUBEBUILDER_ASSETS": str(tmp_path)})


def test_assets_that_lack_a_program_are_refused(tmp_path: Path) -> None:
    """KUBEBUILDER_ASSETS that leads nowhere is a mistake to be told, not a reason to build."""
    with pytest.raises(BinariesMissing, match="holds no program etcd"):
        find_binaries({**without_go(tmp_path), "KUBEBUILDER_ASSETS": str(tmp_path)})


@pytest.mark.parametrize("name", ["go.mod", "go.sum"])
def test_a_changed_pin_is_another_cache_folder(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit of either file changes the key, so that a stale program is never taken for the pinned one."""
    before = ETCD.key
    shutil.copytree(binaries.MODULES / ETCD.name, tmp_path / ETCD.name)
    monkeypatch.setattr(binaries, "MODULES", tmp_path)
    assert ETCD.key == before
    with (tmp_path / ETCD.name / name).open("a") as file:
        file.write("\n")
    assert before != ETCD.key


def test_a_module_that_pins_nothing_is_refused() -> None:
    """The version is never guessed."""
    wrong: GoModule = msgspec.structs.replace(ETCD, dependency="example.com/none")
    with pytest.raises(BinariesMissing, match=r"does not require example\.com/none"):
        build(wrong)


@pytest.mark.parametrize(
    "module", [*KUBERNETES.values(), KUBECTL], ids=lambda module: f"{module.name}-{module.version}"
)
def test_every_staging_module_has_the_version_of_kubernetes(module: GoModule) -> None:
    """k8s.io/kubernetes v1.X.Y goes with k8s.io/api and its like v0.X.Y: one left behind is a mistake in go.mod."""
    replaced = [line for line in (module.folder / "go.mod").read_text().splitlines() if "=>" in line]
    assert len(replaced) > 30
    assert {line.split()[-1] for line in replaced} == {module.version.replace("v1.", "v0.", 1)}


@pytest.mark.parametrize(
    "module", [CONTAINERD, HELM, HELM_3, KUBECTL], ids=lambda module: f"{module.name}-{module.version}"
)
def test_each_program_on_demand_has_pins(module: GoModule) -> None:
    """Its version is the one that go.mod requires, and go.sum has the module's checksum."""
    assert f"{module.dependency} {module.version} h1:" in (module.folder / "go.sum").read_text()


def test_kubectl_is_of_the_newest_release() -> None:
    """kubectl talks to servers of its own release and of the one before."""
    assert KUBECTL.version == NEWEST.version


@pytest.mark.parametrize("release", KUBERNETES)
def test_the_release_named_by_k8s_is_built(tmp_path: Path, go: Path, release: str) -> None:
    """Each release has its folder of pins and its folder in the cache; etcd is the same for all."""
    found = find_binaries({**environment(tmp_path, go), "K8S": release})
    assert found.kube_scheduler.parent.name.startswith(f"kubernetes-v{release}.")
    assert found.etcd.parent.name == ETCD.key


def test_the_newest_release_is_the_default(tmp_path: Path) -> None:
    """An unset K8S and an empty one, as `make e2e K8S=` hands it on, say the same."""
    assert chosen_kubernetes({}) is chosen_kubernetes({"K8S": ""}) is NEWEST


def test_a_release_that_is_not_pinned_is_refused(tmp_path: Path, go: Path) -> None:
    """The message names those that are."""
    with pytest.raises(BinariesMissing, match=r"K8S is 1\.20, but the releases pinned in .* are 1\.36, 1\.35, 1\.34"):
        find_binaries({**environment(tmp_path, go), "K8S": "1.20"})


def test_k8s_is_stronger_than_assets(tmp_path: Path, go: Path) -> None:
    """Whoever names a release tests that one, not what envtest left in the environment."""
    for name in ("etcd", "kube-apiserver", "kube-scheduler"):
        executable(tmp_path / name)
    found = find_binaries({**environment(tmp_path, go), "KUBEBUILDER_ASSETS": str(tmp_path), "K8S": "1.35"})
    assert found.kube_apiserver.parent.name == KUBERNETES["1.35"].key


def test_the_command_builds_the_control_plane_and_what_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a name, the control plane alone."""
    monkeypatch.setattr(binaries, "find_binaries", lambda: [Path("/built/etcd")])
    monkeypatch.setattr(binaries, "build", lambda module, environment: Path("/built"))
    for names, built in (([], ["/built/etcd"]), (["kubelet"], ["/built/etcd", "/built/kubelet"])):
        monkeypatch.setattr(sys, "argv", ["binaries", *names])
        assert binaries.main() == 0
        assert capsys.readouterr().out.split() == built
    monkeypatch.setattr(sys, "argv", ["binaries", "kubeadm"])
    with pytest.raises(SystemExit):
        binaries.main()
    assert (
        "kubeadm is no program; there is kube-controller-manager, kubelet, containerd, karpenter"
        in capsys.readouterr().err
    )
