"""The objects of a plan's namespaces and secrets, as the API server has them."""

import base64
import json

from tests.worlds.plan import Manifest, Namespace, Secret


def namespace_object(namespace: Namespace) -> Manifest:
    """A namespace."""
    metadata = {"name": namespace.name, "annotations": namespace.annotations, "labels": namespace.labels}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def secret_object(secret: Secret) -> Manifest:
    """A pull secret."""
    auths = {host: {"auth": base64.b64encode(login.encode()).decode()} for host, login in secret.logins.items()}
    text = json.dumps({"auths": auths})
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": secret.name, "namespace": secret.namespace},
        "type": "kubernetes.io/dockerconfigjson",
        "data": {".dockerconfigjson": base64.b64encode(text.encode()).decode()},
    }
