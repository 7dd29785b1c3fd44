"""The files of a siege: the service's settings, certificates, a kubeconfig, mirrors.

The settings are those of deploy/manifests/second-scheduler.yaml. Different are only the paths of files, the kubeconfig,
the authority of the registries, and their mirror.
"""

from pathlib import Path
from typing import NamedTuple

import msgspec
import trustme

from benchmarks.quiet_cluster import KUBECONFIG
from benchmarks.siege.network import (
    API_PORT,
    API_SERVER,
    ATTACKING_ZONE,
    HONEST_ZONE,
    MIRROR,
    MIRRORED,
    UPSTREAMS,
)
from benchmarks.siege.registries import KINDS
from testbed.certificates import write_pair
from testbed.shipped_files import Mode, service_configuration


class Files(NamedTuple):
    """The service's configuration, and the registries' certificate and key, in one folder."""

    folder: Path
    configuration: Path
    certificate: Path
    key: Path


def write_files(folder: Path) -> Files:
    """Writes the files of a siege."""
    authority = trustme.CA(organization_name="multiarch-extender siege")
    authority.cert_pem.write_to_path(folder / "authority.pem")
    kinds = (f"*.{kind}.{ATTACKING_ZONE}" for kind in sorted({*KINDS}))
    registries = write_pair(authority.issue_cert(f"*.{HONEST_ZONE}", *kinds), folder / "registries")
    name = "multiarch-scheduler.multiarch-extender.svc"
    certificate, key = write_pair(authority.issue_cert(name), folder / "admission")
    (folder / "kubeconfig").write_text(KUBECONFIG.format(url=f"http://{API_SERVER}:{API_PORT}"))
    for registry in (MIRRORED, *UPSTREAMS):
        hosts = folder / "certs.d" / registry / "hosts.toml"
        hosts.parent.mkdir(parents=True)
        hosts.write_text(f'server = "https://{registry}"\n[host."https://{MIRROR}"]\n')
    settings = service_configuration(Mode.SECOND)
    settings["cluster"] = str(folder / "kubeconfig")
    settings["admission"]["tls"] = {"certificate": str(certificate), "key": str(key)}
    settings["registry"] = {
        "ca_files": [str(folder / "authority.pem")],
        "mirrors": str(folder / "certs.d"),
    }
    configuration = folder / "config.yaml"
    configuration.write_bytes(msgspec.yaml.encode(settings))
    return Files(folder, configuration, *registries)
