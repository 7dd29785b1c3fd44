"""The configuration files of a node. This module is pure.

The paths of kubelet and containerd are their defaults, which the node keeps in memory (`node.sh`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from testbed.nodes.programs import Containerd

SOCKET = "unix:///run/containerd/containerd.sock"
POD_ADDRESS = "10.88.0.2/16"
TUNABLES: Mapping[str, str] = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""Settings of the machine, below /proc/sys, that kubelet otherwise changes for all; with what it wants them to be."""

CNI_PLUGIN = f"""#!/bin/sh
cat >/dev/null
case $CNI_COMMAND in
ADD) echo '{{"cniVersion":"1.0.0","interfaces":[{{"name":"eth0","sandbox":"'"$CNI_NETNS"'"}}],\
"ips":[{{"address":"{POD_ADDRESS}","interface":0}}]}}' ;;
VERSION) echo '{{"cniVersion":"1.0.0","supportedVersions":["0.3.1","0.4.0","1.0.0"]}}' ;;
esac
"""
"""A network plugin that says every pod has one address, and leaves the pod's network namespace empty."""

POD_NETWORK_PLUGIN = """#!/bin/sh
set -e
cat >/dev/null
case $CNI_COMMAND in
ADD)
  end=v$(echo "$CNI_CONTAINERID" | cut -c1-12)
  ip link add "$end" type veth peer name eth0 netns "$CNI_NETNS"
  ip link set "$end" master cni0 up
  number=$(ip -o link show "$end" | cut -d: -f1) # no other interface of the node has or had it
  address=10.88.$((number / 256)).$((number % 256))/16
  nsenter --net="$CNI_NETNS" sh -ec "ip link set lo up
    ip address add $address dev eth0
    ip link set eth0 up
    ip route add default via 10.88.0.1"
  echo '{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"'"$CNI_NETNS"'"}],\
"ips":[{"address":"'"$address"'","gateway":"10.88.0.1","interface":0}]}' ;;
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["0.3.1","0.4.0","1.0.0"]}' ;;
esac
"""
"""A network plugin that ties each pod to the bridge cni0, which `node.sh` makes, and gives it an address of its own."""

CNI_NETWORK = {"cniVersion": "1.0.0", "name": "none", "plugins": [{"type": "none"}]}


def kubelet_configuration(port: int, cgroup: str, client_ca: Path) -> dict[str, Any]:
    """Returns the KubeletConfiguration: loopback only, clients with a certificate only, nothing of the machine changed.

    `protectKernelDefaults` makes kubelet end where it would change a setting that `TUNABLES` misses. Without
    `registryPullQPS: 0` kubelet refuses pulls after ten at once, in the way in which it reports an image refused.
    """
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "127.0.0.1",
        "port": port,
        "healthzPort": 0,
        "readOnlyPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(client_ca)},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "protectKernelDefaults": True,
        "containerRuntimeEndpoint": SOCKET,
        "oomScoreAdj": 0,
        "maxOpenFiles": 20000,
        "makeIPTablesUtilChains": False,
        "enforceNodeAllocatable": [],
        "registryPullQPS": 0,
        "resolvConf": "",
        "clusterDNS": ["10.0.0.10"],
        "localStorageCapacityIsolation": False,
        "evictionHard": {"memory.available": "1Mi"},
        "syncFrequency": "5s",
        "nodeStatusUpdateFrequency": "5s",
    }


def containerd_configuration(
    version: Containerd, pause_image: str, runtime: Path, cni: Path, hosts: Path | None = None
) -> bytes:
    """Returns containerd's configuration file in that version's form. It pulls from loopback by plain HTTP.

    `hosts` is a folder of registries' `hosts.toml`.
    """
    registry = {"registry": {"config_path": str(hosts)}} if hosts else {}
    options = {"SystemdCgroup": False, "BinaryName": str(runtime)}
    runtimes = {"runc": {"runtime_type": "io.containerd.runc.v2", "options": options}}
    restrained = {"restrict_oom_score_adj": True, "disable_apparmor": True}
    if version is Containerd.DEBIAN:
        network: dict[str, Any] = {"bin_dir": str(cni / "bin"), "conf_dir": str(cni / "conf")}
        service = {
            "sandbox_image": pause_image,
            "cni": network,
            "containerd": {"runtimes": runtimes},
            **restrained,
            **registry,
        }
        return encode_toml({"version": 2, "plugins": {"io.containerd.grpc.v1.cri": service}})
    network = {"bin_dirs": [str(cni / "bin")], "conf_dir": str(cni / "conf"), "use_internal_loopback": True}
    return encode_toml(
        {
            "version": 3,
            "disabled_plugins": ["io.containerd.nri.v1.nri"],
            "plugins": {
                "io.containerd.cri.v1.images": {"pinned_images": {"sandbox": pause_image}, **registry},
                "io.containerd.cri.v1.runtime": {
                    "cni": network,
                    "containerd": {"runtimes": runtimes},
                    **restrained,
                },
            },
        }
    )


def encode_toml(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> bytes:
    """Returns the table as TOML, whose strings, numbers, booleans and arrays are written as in JSON."""
    header = f"[{'.'.join(_encode(key) for key in path)}]\n" if path else ""
    values = [f"{_encode(key)} = {_encode(value)}\n" for key, value in table.items() if not isinstance(value, dict)]
    tables = [encode_toml(value, (*path, key)) for key, value in table.items() if isinstance(value, dict)]
    return (header + "".join(values)).encode() + b"".join(tables)


def _encode(value: object) -> str:
    return msgspec.json.encode(value).decode()
