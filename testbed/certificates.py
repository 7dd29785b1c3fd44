"""Certificates in files; those of a control plane on loopback, with its kubeconfig files, from an authority of its own.

Kubernetes takes the user from the subject's common name and the group from its organisation.
"""

import base64
import ssl
from pathlib import Path
from typing import NamedTuple

import msgspec
import trustme


class KeyPair(NamedTuple):
    """The files of a certificate and its private key, PEM."""

    certificate: Path
    key: Path


def write_pair(issued: trustme.LeafCert, stem: Path) -> KeyPair:
    """Writes a certificate and its key into files beside each other, which end with .crt and .key."""
    pair = KeyPair(stem.with_name(f"{stem.name}.crt"), stem.with_name(f"{stem.name}.key"))
    issued.cert_chain_pems[0].write_to_path(pair.certificate)
    issued.private_key_pem.write_to_path(pair.key)
    return pair


class Authority:
    """An authority that issues all certificates of a cluster into one folder, which must be private to this user."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = trustme.CA(organization_name="multiarch-extender tests")
        self.certificate = folder / "ca.crt"
        self._authority.cert_pem.write_to_path(self.certificate)

    def issue(self, name: str, group: str = "") -> KeyPair:
        """Issues a key pair whose subject is this user, in this group if one is named.

        It is good for 127.0.0.1 and localhost, and for the Service kubernetes, by which pods find the API server.
        """
        hosts = ("127.0.0.1", "localhost", "10.0.0.1", "kubernetes.default.svc")
        issued = self._authority.issue_cert(*hosts, common_name=name, organization_name=group or name)
        return write_pair(issued, self._folder / name)

    def trust(self, identity: KeyPair) -> ssl.SSLContext:
        """Returns a client's TLS context that trusts this authority only and presents that identity."""
        context = ssl.create_default_context(cafile=self.certificate)
        context.load_cert_chain(identity.certificate, identity.key)
        return context

    def write_kubeconfig(self, path: Path, server: str, identity: KeyPair) -> None:
        """Writes a kubeconfig that embeds its certificates and keys, so that it needs no other file."""
        cluster = {"server": server, "certificate-authority-data": _base64(self.certificate)}
        user = {"client-certificate-data": _base64(identity.certificate), "client-key-data": _base64(identity.key)}
        kubeconfig = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "local", "cluster": cluster}],
            "users": [{"name": "local", "user": user}],
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": "local"}}],
            "current-context": "local",
        }
        path.touch(mode=0o600)
        path.write_bytes(msgspec.yaml.encode(kubeconfig))


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
