"""Which policies a way to run the service needs on which version of Kubernetes, one file each."""

import enum
from collections.abc import Sequence

import msgspec

from extender.admission_policies.gating import gating_policy
from extender.admission_policies.objects import OWN_NAMESPACE, SelectedNamespaces
from extender.admission_policies.own_account import own_account_policy
from extender.admission_policies.scheduler_name import LABEL, scheduler_name_policy
from extender.placement.patch import JsonObject

OWN_ACCOUNT = (OWN_NAMESPACE, "multiarch-webhook")
"""The namespace and the name of the account under which the shipped manifests run webhook and gate controller."""

FIRST_VERSION = (1, 36)
"""The first version of Kubernetes that serves MutatingAdmissionPolicy as v1."""


class Way(enum.StrEnum):
    """How pods are held until their images are known."""

    ALONE = "alone"
    WITH_WEBHOOK = "with-webhook"


class Name(enum.StrEnum):
    """The names of the files."""

    OWN_ACCOUNT = "own-account"
    GATE = "gate"
    SCHEDULER_NAME = "scheduler-name"


class PolicyFile(msgspec.Struct, frozen=True):
    """Objects to apply together. `comment` says what they do, in one paragraph."""

    name: Name
    comment: str
    objects: Sequence[JsonObject]


class PolicyChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator chooses. With an empty `scheduler` no scheduler is named."""

    way: Way = Way.WITH_WEBHOOK
    namespaces: SelectedNamespaces = SelectedNamespaces()
    accounts: Sequence[tuple[str, str]] = (OWN_ACCOUNT,)
    scheduler: str = ""


class PoliciesImpossible(Exception):
    """The cluster cannot have what was chosen; the message says why, and what to do instead."""


def policy_files(choice: PolicyChoice, *, has_mutating: bool) -> list[PolicyFile]:
    """The files for a cluster; `has_mutating`: it serves MutatingAdmissionPolicy as v1.

    Beside a webhook, a cluster without it gets the other policies, and the webhook adds the gate itself.

    Raises:
        PoliciesImpossible: the choice needs MutatingAdmissionPolicy.
        ValueError: a name in the choice cannot be one.
    """
    needed = f"it needs MutatingAdmissionPolicy, which Kubernetes serves from {_version_text()} on"
    if choice.way is Way.ALONE and not has_mutating:
        raise PoliciesImpossible(f"--mode alone: {needed}; use the webhook with admission.unknown: gate")
    if choice.scheduler and not has_mutating:
        raise PoliciesImpossible(
            f"--scheduler-name: {needed}; the webhook of second-scheduler.yaml names the scheduler there"
        )
    files = [_own_account(choice)]
    if has_mutating:
        files.append(_gate(choice))
    if choice.scheduler:
        files.append(_scheduler_name(choice))
    return files


def _own_account(choice: PolicyChoice) -> PolicyFile:
    comment = (
        "Holds the service's own account to the changes of pods that the service makes: whoever has its token can "
        "change only pods that our gate holds, and of those only the gate, node affinity, tolerations, and annotations "
        "and labels of ours. RBAC alone cannot say that. Kubernetes 1.30 or later."
    )
    return PolicyFile(Name.OWN_ACCOUNT, comment, own_account_policy(choice.accounts))


def _gate(choice: PolicyChoice) -> PolicyFile:
    comment = (
        "Holds each new pod by a scheduling gate until the platforms of its images are known. It needs nothing of ours "
        "to run: during an outage pods are created and wait. Somebody has to let them go, so apply it when a service "
        f"with admission.unknown: gate is ready, and delete it before the service. Kubernetes {_version_text()} or "
        "later."
    )
    return PolicyFile(Name.GATE, comment, gating_policy(choice.namespaces))


def _scheduler_name(choice: PolicyChoice) -> PolicyFile:
    comment = (
        f"Names the scheduler {choice.scheduler} for pods that name no other, in namespaces with the label "
        f"{LABEL}: {choice.scheduler}. It needs nothing of ours to run: during an outage these pods "
        f"wait for that scheduler. Kubernetes {_version_text()} or later."
    )
    objects = scheduler_name_policy(choice.scheduler, choice.namespaces)
    return PolicyFile(Name.SCHEDULER_NAME, comment, objects)


def _version_text() -> str:
    return ".".join(map(str, FIRST_VERSION))
