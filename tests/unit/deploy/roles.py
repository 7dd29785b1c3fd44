"""What the roles of a set of objects give to an account, and what its settings take."""

from collections.abc import Mapping, Sequence
from itertools import product

import yaml

from extender.config.reading import parse_config
from extender.config.tree import Config, TlsConfig
from extender.kubernetes.api_groups import ResourceAttributes
from extender.service.rights import TABLE, When
from testbed.objects import KubernetesObject


def rights_in(rules: Sequence[KubernetesObject], namespace: str) -> set[ResourceAttributes]:
    """What the rules of a role give, in the namespace of a Role, or everywhere."""
    return {
        ResourceAttributes(verb, resource, group, namespace, name)
        for rule in rules
        for verb, resource, group, name in product(
            rule["verbs"], rule["resources"], rule["apiGroups"], rule.get("resourceNames", [""])
        )
    }


def rights_given(objects: Sequence[KubernetesObject], account: str) -> set[ResourceAttributes]:
    """What the roles that are among the objects give to the ServiceAccount of that name."""
    roles = {(each["kind"], *_place_of(each)): each for each in objects if each["kind"].endswith("Role")}
    given = set[ResourceAttributes]()
    for each in objects:
        if account in {subject["name"] for subject in each.get("subjects", ())}:
            _, namespace = _place_of(each)
            kind, name = each["roleRef"]["kind"], each["roleRef"]["name"]
            role = roles.get((kind, name, namespace if kind == "Role" else ""), {"rules": []})
            given |= rights_in(role["rules"], namespace)
    return given


def _place_of(document: KubernetesObject) -> tuple[str, str]:
    return document["metadata"]["name"], document["metadata"].get("namespace", "")


def is_given(right: ResourceAttributes, given: set[ResourceAttributes]) -> bool:
    """Whether one of the rights given covers it: for its namespace and name, or for all."""
    return any(
        (each.verb, each.resource, each.group) == (right.verb, right.resource, right.group)
        and each.namespace in ("", right.namespace)
        and each.name in ("", right.name)
        for each in given
    )


def rights_taken(settings: str, namespace: str) -> set[ResourceAttributes]:
    """What a service takes whose ConfigMap has these settings, and whose pods are in `namespace`."""
    config = parse_config(settings, "")
    facts = _facts(config, removes_gates="gate" in yaml.safe_load(settings)["admission"])
    listed, tls = config.registry.pull_secrets, config.admission.tls or TlsConfig()
    gate = config.admission.gate
    places = {
        "": ("",),
        "own": (namespace,),
        "probe": (gate.probe_namespace,),
        "listed": () if isinstance(listed, bool) else listed,
    }
    names = {"": "", "lease": gate.lease, "policy": gate.policy}
    names |= {"identity": tls.identity_secret, "configuration": tls.service}
    return {
        ResourceAttributes(verb, each.resource, each.group, place, names[each.named])
        for each in TABLE
        if facts[each.when]
        for place, verb in product(places[each.namespaces], each.verbs)
    }


def _facts(config: Config, *, removes_gates: bool) -> Mapping[When, bool]:
    admission, secrets = config.admission, config.registry.pull_secrets
    return {
        "always": True,
        "scheduler": bool(config.scheduler.listen),
        "webhook": bool(admission.listen),
        "gates": removes_gates,
        "policy": bool(admission.gate.policy),
        "secrets": secrets is True,
        "secretsOfNamespaces": not isinstance(secrets, bool),
        "selfManaged": bool(admission.listen and admission.tls and admission.tls.self_managed),
    }
