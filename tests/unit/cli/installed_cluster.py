"""A cluster with an installation, as commands read it: it answers by path, from lists and objects."""

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from extender.cluster.client import ClusterClient, ClusterRefused

Document = dict[str, Any]
APPS, ADMISSION = "/apis/apps/v1", "/apis/admissionregistration.k8s.io/v1"
DEPLOYMENTS, NODES, PODS, NAMESPACES = f"{APPS}/deployments", "/api/v1/nodes", "/api/v1/pods", "/api/v1/namespaces"
WEBHOOKS = f"{ADMISSION}/mutatingwebhookconfigurations"
CONFIG_MAP = "/api/v1/namespaces/ours/configmaps/webhook"
SECRET = "/api/v1/namespaces/ours/secrets/tls"
OWN_PODS, DRY_RUN = "/api/v1/namespaces/ours/pods", "/api/v1/namespaces/shop/pods?dryRun=All"
SETTINGS = "admission: {listen: ':8443', tls: {certificate: /tls/tls.crt, key: /tls/tls.key}}\nregistry: {mirrors: ''}"


def deployment(**status: Any) -> Document:
    """The webhook's part of an installation in namespace `ours`."""
    container = {
        "name": "extender",
        "args": ["serve", "--config=/config/config.yaml"],
        "volumeMounts": [{"name": "tls", "mountPath": "/tls"}],
    }
    volumes = [{"name": "config", "configMap": {"name": "webhook"}}, {"name": "tls", "secret": {"secretName": "tls"}}]
    return {
        "metadata": {"name": "webhook", "namespace": "ours"},
        "spec": {
            "replicas": status.get("readyReplicas", 0),
            "selector": {"matchLabels": {"app": "x"}},
            "template": {"spec": {"containers": [container], "volumes": volumes}},
        },
        "status": status,
    }


class InstalledCluster:
    """Answers a client's requests from lists and objects by path, and notes which were made.

    A list may have the selector behind a `?`.
    """

    def __init__(self, settings: str = SETTINGS) -> None:
        rule = {"apiGroups": [""], "operations": ["CREATE"], "resources": ["pods"]}
        webhook = {
            "name": "pods",
            "rules": [rule],
            "clientConfig": {"service": {"name": "webhook", "namespace": "ours"}},
        }
        self.lists: dict[str, list[Document]] = {
            DEPLOYMENTS: [deployment(readyReplicas=2)],
            WEBHOOKS: [{"metadata": {"name": "webhook"}, "webhooks": [webhook]}],
            NAMESPACES: [{"metadata": {"name": "shop"}}],
            NODES: [{"metadata": {"name": "n"}}],
        }
        self.objects: dict[str, Document] = {CONFIG_MAP: {"data": {"config.yaml": settings}}}
        self.texts: dict[str, str | ClusterRefused] = {}
        """What is answered at a path by whatever the API server is a proxy for."""
        self.refused: set[str] = set()
        self.asked: set[str] = set()

    async def find(self, path: str, decoder: msgspec.json.Decoder[Any], **_: object) -> Any:
        try:
            return decoder.decode(await self.get(path))
        except ClusterRefused as exc:
            if exc.status == 404:
                return None
            raise

    async def get(self, path: str, query: Mapping[str, str] | None = None, **_: object) -> bytes:
        self.asked.add(path)
        if isinstance(text := self.texts.get(path), ClusterRefused):
            raise text
        if text:
            return text.encode()
        if path in self.refused:
            raise ClusterRefused(f"{path}: HTTP 403", 403)
        if path in self.objects:
            return msgspec.json.encode(self.objects[path])
        if path.rpartition("/")[0].endswith(("secrets", "configmaps")):
            raise ClusterRefused(f"{path}: HTTP 404", 404)
        selected = f"{path}?{(query or {}).get('labelSelector', '')}"
        return msgspec.json.encode({"metadata": {}, "items": self.lists.get(selected, self.lists.get(path, []))})

    async def send(self, _method: str, path: str, body: bytes, *_: object, **__: object) -> bytes:
        self.asked.add(path)
        return body

    @property
    def client(self) -> ClusterClient:
        return cast("ClusterClient", self)
