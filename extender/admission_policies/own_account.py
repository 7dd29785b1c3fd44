"""The policy that holds the service's own account to the changes of pods that the service makes.

The account may patch pods, since RBAC knows no fields. This policy narrows that right: only pods that our gate holds,
and of those only the gate, affinity, tolerations, and labels and annotations of ours. So whoever steals the account's
token can change no image, bind, evict or delete nothing, and touch nobody else's gates. Pods may be created as dry runs
where a role allows it: they are canaries (`cluster.webhook_probe`), and nothing is stored.
"""

from collections.abc import Sequence

from extender.admission_policies.objects import API_VERSION, VALIDATING_POLICY, binding, cel_strings
from extender.placement.annotations import PREFIX
from extender.placement.gate import GATE
from extender.placement.patch import Json, JsonObject

NAME = "multiarch-extender-own-account"
"""The name of the policy and of its binding."""

_SPEC_FIELDS = ("schedulingGates", "affinity", "tolerations")
# The API server writes the last three itself.
_METADATA_FIELDS = ("annotations", "labels", "managedFields", "resourceVersion", "generation")

_IS_UPDATE = "request.operation == 'UPDATE' && request.?subResource.orValue('') == ''"
_IS_DRY_CREATION = (
    "request.operation == 'CREATE' && request.?subResource.orValue('') == '' && request.?dryRun.orValue(false)"
)


def own_account_policy(accounts: Sequence[tuple[str, str]]) -> list[JsonObject]:
    """The policy and its binding for these accounts, each a namespace and a name. Kubernetes 1.30 or later.

    Do not name the second scheduler's account: its kube-scheduler binds pods. Raises ValueError if there is none, or
    one that cannot be a name.
    """
    if not accounts:
        raise ValueError("there is no account to hold")
    users = cel_strings([f"system:serviceaccount:{namespace}:{name}" for namespace, name in accounts])
    policy: JsonObject = {
        "apiVersion": API_VERSION,
        "kind": VALIDATING_POLICY,
        "metadata": {"name": NAME},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "matchPolicy": "Equivalent",
                "resourceRules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["*"],
                        "resources": ["pods", "pods/*", "bindings"],
                        "operations": ["*"],
                        "scope": "*",
                    }
                ],
            },
            "matchConditions": [{"name": "own-account", "expression": f"request.userInfo.username in {users}"}],
            "variables": [
                {"name": "updates", "expression": _IS_UPDATE},
                {"name": "createsDry", "expression": _IS_DRY_CREATION},
                {"name": "specFields", "expression": cel_strings(_SPEC_FIELDS)},
                {"name": "metadataFields", "expression": cel_strings(_METADATA_FIELDS)},
                {"name": "was", "expression": "oldObject.spec.?schedulingGates.orValue([])"},
                {"name": "now", "expression": "object.spec.?schedulingGates.orValue([])"},
            ],
            "validations": [_validation(expression, message) for expression, message in _rules()],
        },
    }
    return [policy, binding(VALIDATING_POLICY, NAME)]


def _validation(expression: str, message: str) -> Json:
    return {"expression": expression, "message": message}


def _rules() -> list[tuple[str, str]]:
    """Expressions with the message of their refusal. All but the first hold for requests that the first refuses."""
    rules = [
        (
            f"variables.was.exists(gate, gate.name == '{GATE}')",
            f"multiarch-extender changes only pods that have the scheduling gate {GATE}",
        ),
        (
            f"variables.was.all(gate, gate.name == '{GATE}' || gate in variables.now)",
            f"multiarch-extender takes no scheduling gate off a pod but {GATE}",
        ),
        (
            _same_fields("spec"),
            f"multiarch-extender changes nothing in a pod's spec but {', '.join(_SPEC_FIELDS)}",
        ),
        (
            "['podAffinity', 'podAntiAffinity'].all(it, object.spec.?affinity[?it] == oldObject.spec.?affinity[?it])",
            "multiarch-extender changes no affinity but nodeAffinity",
        ),
        (
            "oldObject.spec.?tolerations.orValue([]).all(each, each in object.spec.?tolerations.orValue([]))",
            "multiarch-extender changes and removes no toleration of a pod",
        ),
        (
            _same_fields("metadata"),
            "multiarch-extender changes nothing in a pod's metadata but annotations and labels",
        ),
        (
            "['annotations', 'labels'].all(field,\n"
            "  object.metadata[?field].orValue({}).all(key, key.startsWith('" + PREFIX + "') ||\n"
            "    oldObject.metadata[?field][?key] == optional.of(object.metadata[field][key])) &&\n"
            "  oldObject.metadata[?field].orValue({}).all(key, key.startsWith('" + PREFIX + "') ||\n"
            "    key in object.metadata[?field].orValue({})))",
            f"multiarch-extender changes no annotations and labels of a pod but those under {PREFIX}",
        ),
    ]
    first = (
        "variables.updates || variables.createsDry",
        "multiarch-extender updates pods, creates some as dry runs, and does nothing else with them",
    )
    return [first, *((f"!variables.updates ||\n{expression}", message) for expression, message in rules)]


def _same_fields(part: str) -> str:
    """CEL: whether a part of the pod is as before, except the fields in the variable for it.

    `object.spec` is a map at run time, so fields of later versions of Kubernetes are covered as well.
    """
    others = f"variables.{part}Fields"
    return (
        f"object.{part}.all(field, field in {others} ||\n"
        f"  (field in oldObject.{part} && object.{part}[field] == oldObject.{part}[field])) &&\n"
        f"oldObject.{part}.all(field, field in {others} || field in object.{part})"
    )
