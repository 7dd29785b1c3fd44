"""The table of what each mode may do in a cluster, from the roles of the chart."""

from collections.abc import Mapping
from typing import Any

from testbed.chart import NAME, objects_of, render

MODES: Mapping[str, Mapping[str, Any]] = {
    "webhook": {},
    "policy": {"webhook": {"enabled": False}, "policy": {"enabled": True}},
    "second scheduler": {"webhook": {"enabled": False}, "secondScheduler": {"enabled": True}},
    "default scheduler": {"webhook": {"enabled": False}, "defaultScheduler": {"enabled": True}},
}
CLUSTER, OWN, PROBES = "", NAME, "default"
REASONS: Mapping[tuple[str, str, bool], str] = {
    ("nodes", CLUSTER, False): "platforms and taints",
    ("namespaces", CLUSTER, False): "annotations",
    ("pods", CLUSTER, False): "what uses an image; patch: [removing gates](how-to/hold-until-known.md)",
    ("events", CLUSTER, False): "reasons",
    ("mutatingadmissionpolicybindings", CLUSTER, True): "puts the policy into force that holds pods",
    (
        "mutatingwebhookconfigurations",
        CLUSTER,
        True,
    ): "its certificate",
    ("secrets", OWN, True): "its certificate",
    ("leases", OWN, True): "who leads",
    ("leases", OWN, False): "the same",
    ("pods", PROBES, False): "[dry runs](how-to/install-with-helm.md#probes)",
    ("system:kube-scheduler", CLUSTER, True): "kube-scheduler",
    ("system:volume-scheduler", CLUSTER, True): "the same",
    ("extension-apiserver-authentication-reader", "kube-system", True): "the same",
}
"""What each right is for, in the order of the table: resource or built-in role, where, whether objects are named."""


def rights_table() -> str:
    """Who may do what, as Markdown. Raises HelmMissing."""
    found = {mode: _rights(values) for mode, values in MODES.items()}
    unexplained = set().union(*found.values()) - REASONS.keys()
    assert not unexplained, f"tools/docs/rights.py has no reason for {unexplained}"
    rows = [
        f"| {_what(key)} | {' | '.join(each.get(key, '') for each in found.values())} | {reason} |"
        for key, reason in REASONS.items()
        if any(key in each for each in found.values())
    ]
    head = [f"| rights on | {' | '.join(MODES)} | for |", "|---" * (len(MODES) + 2) + "|"]
    return "\n".join([*head, *rows, ""])


def _what(key: tuple[str, str, bool]) -> str:
    resource, where, is_named = key
    if resource.startswith(("system:", "extension-")):
        return f"role `{resource}`"
    place = {CLUSTER: "", OWN: ", its own namespace", PROBES: ", `default`"}[where]
    return f"{resource}{place}{', by name' if is_named else ''}"


def _rights(modes: Mapping[str, Any]) -> dict[tuple[str, str, bool], str]:
    """The verbs by resource, place, and whether objects are named."""
    verbs: dict[tuple[str, str, bool], set[str]] = {}
    for each in objects_of(render({"modes": modes, "doctor": {"enabled": False}})):
        where = str(each["metadata"].get("namespace", CLUSTER))
        for rule in each.get("rules", ()) if each["kind"].endswith("Role") else ():
            for resource in rule["resources"]:
                verbs.setdefault((resource, where, "resourceNames" in rule), set()).update(rule["verbs"])
        role = each.get("roleRef", {}).get("name", NAME)
        if not role.startswith(NAME):
            verbs[role, where, True] = {"yes"}
    return {key: ", ".join(sorted(each)) for key, each in verbs.items()}
