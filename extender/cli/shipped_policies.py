"""The admission policies of `extender/admission_policies`, with what an operator asks for filled in.

The files are policies as they are shipped: for the account and the namespace of the shipped manifests, and for the
scheduler of the second one. Each begins with a comment that says what it does.
"""

import enum
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from textwrap import wrap
from typing import Any

import msgspec
import yaml

from extender.kubernetes.yaml_scalars import needs_quotes
from extender.placement.patch import Json, JsonObject
from extender.placement.policy import PREFIX

OWN_ACCOUNT = ("multiarch-extender", "multiarch-webhook")
"""The namespace and the name of the account under which the shipped manifests run webhook and gate controller."""

FIRST_VERSION = (1, 36)
"""The first version of Kubernetes that serves MutatingAdmissionPolicy as v1."""

SCHEDULER_LABEL = f"{PREFIX}scheduler"
"""The label of namespaces whose pods get a scheduler's name; its value is that name."""

SHIPPED_SCHEDULER = "multiarch-scheduler"
"""The name of the scheduler in the file that names one."""

_NAMESPACE_NAME = "kubernetes.io/metadata.name"
_SYSTEM_NAMESPACES = ("kube-system", "kube-node-lease", "kube-public")
_COLUMNS = 118
_COMMENT = re.compile(r"(?:#.*\n)+")


class Way(enum.StrEnum):
    """How pods are held until their images are known."""

    ALONE = "alone"
    WITH_WEBHOOK = "with-webhook"


class Name(enum.StrEnum):
    """The names of the files."""

    OWN_ACCOUNT = "own-account"
    GATE = "gate"
    SCHEDULER_NAME = "scheduler-name"


class SelectedNamespaces(msgspec.Struct, frozen=True):
    """Namespaces with all of `labels`, except the cluster's own and those in `excluded`."""

    labels: Mapping[str, str] = {}
    excluded: Sequence[str] = OWN_ACCOUNT[:1]

    def selector(self) -> JsonObject:
        """The metav1.LabelSelector."""
        names: list[Json] = [*_SYSTEM_NAMESPACES, *sorted(set(self.excluded))]
        selector: JsonObject = {
            "matchExpressions": [{"key": _NAMESPACE_NAME, "operator": "NotIn", "values": names}],
        }
        return {"matchLabels": dict(self.labels), **selector} if self.labels else selector

    def selects(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether the selector selects a namespace of that name with these labels."""
        is_excluded = name in _SYSTEM_NAMESPACES or name in self.excluded
        return not is_excluded and self.labels.items() <= labels.items()


class PolicyFile(msgspec.Struct, frozen=True):
    """Objects to apply together. `comment` says what they do, in one paragraph."""

    name: Name
    comment: str
    objects: Sequence[JsonObject]


class PolicyChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator chooses; `accounts` are namespaces and names. With an empty `scheduler` none is named.

    Do not name the second scheduler's account: its kube-scheduler binds pods.
    """

    way: Way = Way.WITH_WEBHOOK
    namespaces: SelectedNamespaces = SelectedNamespaces()
    accounts: Sequence[tuple[str, str]] = (OWN_ACCOUNT,)
    scheduler: str = ""

    @property
    def labelled_namespaces(self) -> SelectedNamespaces:
        """Those of the namespaces whose label asks for the scheduler."""
        labels = {**self.namespaces.labels, SCHEDULER_LABEL: self.scheduler}
        return SelectedNamespaces(labels, self.namespaces.excluded)


class PoliciesImpossible(Exception):
    """The cluster cannot have what was chosen; the message says why, and what to do instead."""


def policy_files(choice: PolicyChoice, *, has_mutating: bool) -> list[PolicyFile]:
    """The files for a cluster; `has_mutating`: it serves MutatingAdmissionPolicy as v1.

    Beside a webhook, a cluster without it gets the other policies, and the webhook adds the gate itself.

    Raises:
        PoliciesImpossible: the choice needs MutatingAdmissionPolicy.
    """
    version = ".".join(map(str, FIRST_VERSION))
    needed = f"it needs MutatingAdmissionPolicy, which Kubernetes serves from {version} on"
    if choice.way is Way.ALONE and not has_mutating:
        raise PoliciesImpossible(f"--mode alone: {needed}; use the webhook with admission.unknown: gate")
    if choice.scheduler and not has_mutating:
        raise PoliciesImpossible(
            f"--scheduler-name: {needed}; the webhook of second-scheduler.yaml names the scheduler there"
        )
    files = [_own_account(choice.accounts)]
    if has_mutating:
        files.append(_gate(choice.namespaces))
    if choice.scheduler:
        files.append(_scheduler_name(choice))
    return files


def _own_account(accounts: Sequence[tuple[str, str]]) -> PolicyFile:
    file, spec = _read(Name.OWN_ACCOUNT)
    users = ", ".join(f"'system:serviceaccount:{namespace}:{name}'" for namespace, name in accounts)
    spec["matchConditions"][0]["expression"] = f"request.userInfo.username in [{users}]"
    return file


def _gate(namespaces: SelectedNamespaces) -> PolicyFile:
    file, spec = _read(Name.GATE)
    spec["matchConstraints"]["namespaceSelector"] = namespaces.selector()
    return file


def _scheduler_name(choice: PolicyChoice) -> PolicyFile:
    file, spec = _read(Name.SCHEDULER_NAME)
    patch = spec["mutations"][0]["jsonPatch"]
    patch["expression"] = patch["expression"].replace(f"'{SHIPPED_SCHEDULER}'", f"'{choice.scheduler}'")
    spec["matchConstraints"]["namespaceSelector"] = choice.labelled_namespaces.selector()
    return msgspec.structs.replace(file, comment=file.comment.replace(SHIPPED_SCHEDULER, choice.scheduler))


def _read(name: Name) -> tuple[PolicyFile, dict[str, Any]]:
    """The file as it is shipped, and the spec of its policy, which is filled in."""
    text = (resources.files("extender") / "admission_policies" / f"{name}.yaml").read_text("utf-8")
    found = _COMMENT.match(text)
    lines = found[0].splitlines() if found else []
    file = PolicyFile(name, " ".join(line.removeprefix("# ") for line in lines), list(yaml.safe_load_all(text)))
    spec: Any = file.objects[0]["spec"]
    return file, spec


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such, and quotes what kubectl would read as no text."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else "'" if needs_quotes(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def to_yaml(files: Sequence[PolicyFile]) -> str:
    """The files as one YAML text, each after its comment."""
    return "---\n".join(_text(file) for file in files)


def _text(file: PolicyFile) -> str:
    lines = wrap(file.comment, _COLUMNS, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
    objects = yaml.dump_all(file.objects, Dumper=_Dumper, sort_keys=False, width=_COLUMNS, allow_unicode=True)
    return "\n".join([*lines, objects])
