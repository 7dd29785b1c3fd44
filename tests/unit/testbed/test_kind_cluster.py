"""The kind provider without kind: its manifests, and the commands it would run, recorded by stand-ins."""

from pathlib import Path

import msgspec
import pytest

from testbed.cluster_provider import ClusterProvider, running_scheduler
from testbed.kind_cluster import CONFIGURATIONS, KindCluster, cluster_configuration, scheduler_pod
from testbed.objects import KubernetesObject
from testbed.processes import ProcessFailed

KUBEADM = """
apiVersion: v1
kind: Pod
metadata: {name: kube-scheduler, namespace: kube-system, labels: {component: kube-scheduler, tier: control-plane}}
spec:
  hostNetwork: true
  priorityClassName: system-node-critical
  containers:
  - name: kube-scheduler
    image: registry.k8s.io/kube-scheduler:v1.36.1
    command: [kube-scheduler, --kubeconfig=/etc/kubernetes/scheduler.conf, --leader-elect=true]
    livenessProbe: {httpGet: {host: 127.0.0.1, path: /livez, port: probe-port, scheme: HTTPS}}
    startupProbe: {httpGet: {host: 127.0.0.1, path: /livez, port: probe-port, scheme: HTTPS}}
    ports: [{containerPort: 10259, name: probe-port, protocol: TCP}]
    volumeMounts: [{mountPath: /etc/kubernetes/scheduler.conf, name: kubeconfig, readOnly: true}]
  volumes: [{hostPath: {path: /etc/kubernetes/scheduler.conf, type: FileOrCreate}, name: kubeconfig}]
"""

STAND_IN = """#!/bin/sh
echo "$(basename "$0") $*" >> "$FOLDER/commands"
case "$*" in *"$FAILS"*) echo 'no engine here' >&2; exit 1;; esac
case "$*" in
  *'cat /etc/kubernetes/manifests/kube-scheduler.yaml') cat "$FOLDER/kubeadm.yaml";;
  *'cat > /etc/kubernetes/manifests/'*) cat > "$FOLDER/written.yaml";;
  'network inspect kind') echo '[{"IPAM":{"Config":[{"Gateway":"fc00::1"},{"Gateway":"172.18.0.1"}]}}]';;
esac
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with kind, kubectl and docker that only write down what they were asked, in the file `commands`."""
    for name in ("kind", "kubectl", "docker"):
        (tmp_path / name).write_text(STAND_IN)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "kubeadm.yaml").write_text(KUBEADM)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("FOLDER", str(tmp_path))
    monkeypatch.setenv("FAILS", "nothing fails")
    return tmp_path


def commands(tools: Path) -> str:
    """What the tools were asked, one command per line."""
    return (tools / "commands").read_text()


def test_a_cluster_is_made_used_and_deleted(tools: Path) -> None:
    """kubeadm's scheduler goes before ours comes, and the same cluster that was created is deleted."""
    cluster: ClusterProvider = KindCluster("lab", "kindest/node:v1.36.1")
    with cluster:
        assert cluster.host_address == "172.18.0.1"
        with running_scheduler(cluster, {"parallelism": 4}, "mine"):
            configuration = msgspec.yaml.decode((cluster.kubeconfig.parent / "configurations/mine.yaml").read_bytes())
    assert configuration["parallelism"] == 4
    assert configuration["clientConnection"] == {"kubeconfig": "/etc/kubernetes/scheduler.conf"}
    assert msgspec.yaml.decode((tools / "written.yaml").read_bytes())["metadata"]["name"] == "mine"
    steps = [
        "kind create cluster --name lab",
        "kwok.yaml",
        "condition=Established",
        "stage-fast.yaml",
        "rm /etc/kubernetes/manifests/kube-scheduler.yaml",
        "--for=delete --timeout=180s pod/kube-scheduler-lab-control-plane",
        "cat > /etc/kubernetes/manifests/mine.yaml",
        "--for=condition=Ready --timeout=180s pod/mine-lab-control-plane",
        "rm /etc/kubernetes/manifests/mine.yaml",
        "kind delete cluster --name lab",
    ]
    positions = [commands(tools).index(step) for step in steps]
    assert positions == sorted(positions)
    assert not cluster.kubeconfig.parent.exists()


def test_a_cluster_that_cannot_be_made_is_deleted_all_the_same(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kind may have made half of it; the error says what kind said."""
    monkeypatch.setenv("FAILS", "create cluster")
    with pytest.raises(ProcessFailed, match=r"(?s)kind create cluster.* ended with status 1.*no engine here"):
        KindCluster("lab").up()
    assert "kind delete cluster --name lab" in commands(tools).splitlines()[-1]


def test_the_metrics_of_kinds_scheduler_are_read_within_the_node(tools: Path) -> None:
    """It listens on the node's loopback, at the same port however often it is started; none of it is our process."""
    with KindCluster("lab") as cluster:
        for name in ("mine", "other", "mine"):
            with running_scheduler(cluster, name=name):
                cluster.scheduler_metrics(name)
        assert cluster.processes == ()
    calls = [line for line in commands(tools).splitlines() if "get --raw /metrics" in line]
    ports = [line.split("--server=https://127.0.0.1:")[1].split()[0] for line in calls]
    assert ports == ["10301", "10302", "10301"]
    assert all(
        "exec -i lab-control-plane sh -c kubectl --kubeconfig=/etc/kubernetes/admin.conf" in line for line in calls
    )


def test_a_missing_tool_is_named(tools: Path) -> None:
    """The first thing that most machines lack."""
    (tools / "kind").unlink()
    with pytest.raises(ProcessFailed, match="needs kind on the PATH"):
        KindCluster("lab").up()


def test_kinds_control_plane_sees_our_configurations() -> None:
    """One control plane with the folder mounted, one worker; no kubeadm patch, whose form depends on the version."""
    first, second = cluster_configuration(Path("/somewhere"))["nodes"]
    assert first["role"] == "control-plane"
    assert first["extraMounts"] == [{"hostPath": "/somewhere", "containerPath": CONFIGURATIONS, "readOnly": True}]
    assert second == {"role": "worker"}


def test_kinds_scheduler_is_kubeadms_with_our_configuration() -> None:
    """The image, network and credentials stay; flags, probes and port are ours, since some of its flags would win."""
    kubeadm: KubernetesObject = msgspec.yaml.decode(KUBEADM)
    made = scheduler_pod(kubeadm, "second", 10301, ["--feature-gates=SchedulerPopFromBackoffQ=false"])
    container = made["spec"]["containers"][0]
    assert made["metadata"]["name"] == "second"
    assert made["spec"]["hostNetwork"] is True
    assert container["image"] == "registry.k8s.io/kube-scheduler:v1.36.1"
    assert container["command"][1] == f"--config={CONFIGURATIONS}/second.yaml"
    assert container["command"][-2:] == ["--secure-port=10301", "--feature-gates=SchedulerPopFromBackoffQ=false"]
    assert not any("leader-elect" in argument for argument in container["command"])
    assert container["readinessProbe"]["httpGet"]["port"] == 10301
    assert {"livenessProbe", "startupProbe", "ports"}.isdisjoint(container)
    assert kubeadm == msgspec.yaml.decode(KUBEADM)  # the next scheduler is made from it too


def test_every_mount_of_kinds_scheduler_has_its_volume() -> None:
    """The configuration's mount beside kubeadm's kubeconfig."""
    spec = scheduler_pod(msgspec.yaml.decode(KUBEADM), "second", 10301, [])["spec"]
    mounted = {mount["name"] for mount in spec["containers"][0]["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]} == {"kubeconfig", "configurations"}
