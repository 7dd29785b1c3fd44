"""What OpenShift's nodes trust and log in with: three ConfigMaps and the cluster's pull secret, each read by its name.

The machine-config operator writes the same to nodes (pkg/operator/sync.go of
github.com/openshift/machine-config-operator). It merges the image configuration's `additionalTrustedCA` and the
registry's own `image-registry-ca` into one of the ConfigMaps; the network operator does so for the proxy's authorities.
"""

import re
from typing import NamedTuple

import msgspec

from extender.cluster.client import ClusterClient, ClusterRefused
from extender.cluster.secrets import ClusterSecrets
from extender.credentials.logins import InvalidLogins
from extender.errors import UNDECODABLE
from extender.kubernetes.openshift_v1 import ConfigMap, NodeTrust

_TIMEOUT_SECONDS = 5.0
_MOST_BYTES = 2 << 20  # a ConfigMap may have 1 MiB, and line ends of certificates take two bytes each
_PORT = re.compile(r"\.\.([0-9]+)$")  # keys of a ConfigMap have no colons
_CONFIG_MAP = msgspec.json.Decoder(ConfigMap)


class NamedObject(NamedTuple):
    """An object that is read by its name."""

    resource: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.resource} {self.namespace}/{self.name}"


HOSTS = NamedObject("configmaps", "openshift-config-managed", "merged-trusted-image-registry-ca")
PROXY = NamedObject("configmaps", "openshift-config-managed", "trusted-ca-bundle")
CLUSTER = NamedObject("configmaps", "openshift-config", "user-ca-bundle")
PULL_SECRET = NamedObject("secrets", "openshift-config", "pull-secret")
TRUST_OBJECTS = (HOSTS, PROXY, CLUSTER, PULL_SECRET)
_OPTIONAL = (CLUSTER,)
_BUNDLE_KEY = "ca-bundle.crt"


class TrustProblem(NamedTuple):
    """An object that is missing or cannot be used. `is_refused`: this account may not read it."""

    what: NamedObject
    why: str
    is_refused: bool = False

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


class TrustReading(NamedTuple):
    """What was read, and what could not be."""

    trust: NodeTrust
    problems: tuple[TrustProblem, ...]


async def read_node_trust(client: ClusterClient, secrets: ClusterSecrets, before: NodeTrust) -> TrustReading:
    """Returns what nodes trust and log in with now; nothing in place of what is missing or may not be read.

    A pull secret that is malformed leaves the logins of `before`, as on nodes. Raises ClusterError.
    """
    problems: list[TrustProblem] = []
    hosts, proxy, cluster = [await _read(client, each, problems) for each in (HOSTS, PROXY, CLUSTER)]
    try:
        logins = {
            login.pattern: (login.username, login.password)
            for login in await secrets.read_logins(PULL_SECRET.namespace, PULL_SECRET.name)
        }
        if not logins:
            why = "it does not exist, may not be read, or has no login"
            problems.append(TrustProblem(PULL_SECRET, why, is_refused=True))
    except InvalidLogins as exc:
        logins = before.logins
        problems.append(TrustProblem(PULL_SECRET, str(exc)))
    bundle = "\n".join(filter(None, (each.get(_BUNDLE_KEY) for each in (proxy, cluster))))
    authorities = {_PORT.sub(r":\1", key): text for key, text in hosts.items()}
    return TrustReading(NodeTrust(bundle, authorities, logins), tuple(problems))


async def _read(client: ClusterClient, what: NamedObject, problems: list[TrustProblem]) -> dict[str, str]:
    path = f"/api/v1/namespaces/{what.namespace}/{what.resource}/{what.name}"
    try:
        body = await client.get(path, timeout_seconds=_TIMEOUT_SECONDS, body_bytes=_MOST_BYTES)
        return _CONFIG_MAP.decode(body).data or {}
    except ClusterRefused as exc:
        if exc.status not in (403, 404):
            raise
        is_refused = exc.status == 403
        if is_refused or what not in _OPTIONAL:
            why = "it may not be read" if is_refused else "there is none"
            problems.append(TrustProblem(what, why, is_refused))
    except UNDECODABLE:
        problems.append(TrustProblem(what, "it is no ConfigMap"))
    return {}
