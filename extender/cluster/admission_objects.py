"""Objects by which the API server holds new pods or asks us about them: deleted by name, before gates are removed.

Needs the verb delete on those objects alone.
"""

from extender.cluster.client import ClusterClient, ClusterRefused
from extender.kubernetes.meta_v1 import is_object_name

_GROUP = "/apis/admissionregistration.k8s.io/v1"
_PLURALS = {
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
}


def admission_object_path(text: str) -> str:
    """The path of the object that `KIND/NAME` names.

    Raises:
        ValueError: it is of no kind that holds pods, or no name.
    """
    kind, _, name = text.partition("/")
    if kind not in _PLURALS or not is_object_name(name):
        raise ValueError(f"{text!r} must be {' or '.join(f'{each}/NAME' for each in _PLURALS)}")
    return f"{_GROUP}/{_PLURALS[kind]}/{name}"


async def delete_admission_object(client: ClusterClient, path: str) -> None:
    """Deletes the object at the path, if there is one.

    Raises:
        ClusterError: it may not be deleted, or the API server could not be asked.
    """
    try:
        await client.send("DELETE", path, b"{}")
    except ClusterRefused as exc:
        if exc.status != 404:
            raise
