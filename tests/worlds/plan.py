"""A world as plain data: the settings, the cluster at its start, and the events that follow, each with its time.

Nothing here decides anything. `drawing` makes a plan from a number, `world` plays it, `shrink` leaves parts of it out.
A plan is written as JSON, since a number means another world as soon as the drawing changes.
"""

import enum
from pathlib import Path
from typing import Any

import msgspec

Manifest = dict[str, Any]
"""An object of Kubernetes, as its API has it in JSON."""
LEADER = -1
"""In place of a replica's number: the one that holds the Lease by then, or the first where none does."""


class Mode(enum.StrEnum):
    """How the service is installed (docs/modes).

    `both` is the webhook beside the API server's policy. `default-and-webhook` answers the default scheduler and the
    API server; the second scheduler's webhook names it in labelled namespaces.
    """

    WEBHOOK = "webhook"
    POLICY = "policy"
    BOTH = "both"
    SECOND = "second-scheduler"
    DEFAULT = "default-scheduler"
    DEFAULT_AND_WEBHOOK = "default-and-webhook"

    @property
    def has_webhook(self) -> bool:
        """Whether the API server calls the service."""
        return self in (Mode.WEBHOOK, Mode.BOTH, Mode.SECOND, Mode.DEFAULT_AND_WEBHOOK)

    @property
    def has_policy(self) -> bool:
        """Whether the API server holds pods by a MutatingAdmissionPolicy."""
        return self in (Mode.POLICY, Mode.BOTH)

    @property
    def has_verbs(self) -> bool:
        """Whether a kube-scheduler asks the service."""
        return self in (Mode.SECOND, Mode.DEFAULT, Mode.DEFAULT_AND_WEBHOOK)


class _Data(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    pass


class ExtenderConfig(_Data, frozen=True):
    """The entry of kube-scheduler's configuration for the service; docs are in deploy/scheduler."""

    verbs: tuple[str, ...] = ("filter", "prioritize", "preempt")
    node_cache_capable: bool = True
    ignorable: bool = False
    timeout_seconds: float = 2.0
    weight: int = 10


class KubernetesConfig(_Data, frozen=True):
    """What of the cluster's own configuration differs between worlds.

    `extender` is that of the scheduler that asks the service; None where none does. `workloads` is the value of the
    chart's `modes.webhook.workloads`. `injects` is an image of a sidecar that another webhook adds after ours.
    """

    extender: ExtenderConfig | None = None
    webhook_failure_policy: str = "Ignore"
    webhook_timeout_seconds: int = 3
    workloads: str = "off"
    injects: str = ""
    pop_from_backoff_queue: bool = False


class Node(_Data, frozen=True):
    """A node; `variant` is the arm one, which no node states. `states` is where its platform stands.

    `containerd` is the release of its container runtime. `slots` is how many cores it has; a pod asks for one.
    """

    name: str
    architecture: str = "amd64"
    os: str = "linux"
    states: str = "both"  # or "nodeInfo", "labels"
    containerd: str = "2.3"
    slots: int = 16
    labels: dict[str, str] = {}
    taints: tuple[dict[str, str], ...] = ()

    @property
    def platform(self) -> str:
        """As Kubernetes states it, without variant."""
        return f"{self.os}/{self.architecture}"


class Namespace(_Data, frozen=True):
    """A namespace."""

    name: str
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}


class Image(_Data, frozen=True):
    """What a tag of a repository serves.

    `form` is `index`, `manifest`, or `artifact`, which has no platform. `login` is `user:password` that opens the
    repository, or empty where anybody may pull. `revision` tells apart contents with the same platforms.
    """

    host: str
    repository: str
    tag: str = "1"
    form: str = "index"
    platforms: tuple[str, ...] = ()
    login: str = ""
    revision: int = 0

    @property
    def reference(self) -> str:
        """As a container names it."""
        return f"{self.host}/{self.repository}:{self.tag}"


class Secret(_Data, frozen=True):
    """A pull secret: logins `user:password` by registry host. Without any it is not there."""

    namespace: str
    name: str
    logins: dict[str, str] = {}


class Event(_Data, frozen=True, tag_field="event"):
    """What happens at a time, in seconds since the world began."""

    at: float


class Fault(Event, frozen=True):
    """What is wrong from then on for so many seconds."""

    seconds: float


class Applied(Event, frozen=True, tag="applied"):
    """Somebody makes or changes an object. `by`: `create`, `client-apply` or `server-apply`; `times` in a row."""

    kind: str
    manifest: Manifest
    by: str = "create"
    times: int = 1


class Deleted(Event, frozen=True, tag="deleted"):
    """Somebody deletes an object."""

    kind: str
    namespace: str
    name: str


class Scaled(Event, frozen=True, tag="scaled"):
    """Somebody gives a workload another number of replicas."""

    kind: str
    namespace: str
    name: str
    replicas: int


class NodeAdded(Event, frozen=True, tag="node-added"):
    """A node joins."""

    node: Node


class NodeRemoved(Event, frozen=True, tag="node-removed"):
    """A node leaves, with its pods."""

    name: str


class NodeChanged(Event, frozen=True, tag="node-changed"):
    """A node gets labels, None taking one off, and these taints in place of its own unless None."""

    name: str
    labels: dict[str, str | None] = {}
    taints: tuple[dict[str, str], ...] | None = None


class NamespaceAnnotated(Event, frozen=True, tag="namespace-annotated"):
    """A namespace gets annotations; None takes one off."""

    name: str
    annotations: dict[str, str | None]


class ImagePushed(Event, frozen=True, tag="image-pushed"):
    """A tag is pushed for the first time, or moves."""

    image: Image


class ImageRemoved(Event, frozen=True, tag="image-removed"):
    """A tag is deleted."""

    host: str
    repository: str
    image_tag: str = "1"


class SecretChanged(Event, frozen=True, tag="secret-changed"):
    """A pull secret is made, changed or, without logins, deleted."""

    secret: Secret


class PodImageChanged(Event, frozen=True, tag="pod-image-changed"):
    """Somebody gives the first container of each pod of a namespace that waits for a node another image."""

    namespace: str
    image: str


class GateRemoved(Event, frozen=True, tag="gate-removed"):
    """Another controller takes its own gate `name` off every pod of a namespace."""

    namespace: str
    name: str


class LabelRemoved(Event, frozen=True, tag="label-removed"):
    """Somebody takes the label of held pods off every pod of a namespace."""

    namespace: str


class RegistryFault(Fault, frozen=True, tag="registry-fault"):
    """A registry's: `throttled` (429), `unavailable` (503), `denied` (401 for everybody), `slow`, `silent`, `refused`.

    `amount` is the Retry-After of the first, and the seconds of each answer of a slow one.
    """

    host: str
    what: str
    amount: float = 5.0


class RightDenied(Fault, frozen=True, tag="right-denied"):
    """The account lacks the right to `verb` the resource, such as `patch` `pods`."""

    verb: str
    resource: str


class WatchFault(Fault, frozen=True, tag="watch-fault"):
    """Watches of a resource: `silent` (nothing comes, and nothing ends), `cut`, or `compacted` (410 on the next)."""

    resource: str
    what: str


class ApiFault(Fault, frozen=True, tag="api-fault"):
    """Our requests to the API server: `slow` by `amount` seconds each, or `errors`, a share `amount` of them a 500."""

    what: str
    amount: float


class NetworkFault(Fault, frozen=True, tag="network-fault"):
    """Between a replica and whom it talks to: `cut`, `refused` or `silent`.

    `party` is `api` (its requests to the API server), `callers` (who calls the replica) or a registry's host.
    """

    replica: int
    party: str
    what: str


class PatchRefused(Fault, frozen=True, tag="patch-refused"):
    """A policy of the cluster's denies every patch of a held pod that touches its affinity or tolerations.

    `whole`: one that removes a gate too, by whomever.
    """

    whole: bool = False


class FetcherStopped(Fault, frozen=True, tag="fetcher-stopped"):
    """Look-ups of a replica fail as they do after the death of its fetcher."""

    replica: int


class ReplicaKilled(Event, frozen=True, tag="replica-killed"):
    """A replica ends at once, and is started again by its kubelet."""

    replica: int


class ReplicaTerminated(Event, frozen=True, tag="replica-terminated"):
    """A replica gets SIGTERM; another takes its place."""

    replica: int


class SettingsChanged(Event, frozen=True, tag="settings-changed"):
    """A rollout: each replica in turn is replaced by one that has these settings beside the plan's."""

    settings: tuple[str, ...]


AnyEvent = (
    Applied
    | Deleted
    | Scaled
    | NodeAdded
    | NodeRemoved
    | NodeChanged
    | NamespaceAnnotated
    | ImagePushed
    | ImageRemoved
    | SecretChanged
    | PodImageChanged
    | GateRemoved
    | LabelRemoved
    | RegistryFault
    | RightDenied
    | WatchFault
    | ApiFault
    | NetworkFault
    | PatchRefused
    | FetcherStopped
    | ReplicaKilled
    | ReplicaTerminated
    | SettingsChanged
)


class Plan(_Data, frozen=True):
    """A world. `seconds` is when the last event has happened and each fault has ended; a quiet time follows.

    `chance` seeds everything that the parties draw while they play. `settings` are those of `--set`,
    in which `choices.FOLDER` stands for the folder of `files`.
    """

    number: int
    theme: str
    mode: Mode
    seconds: float = 120.0
    chance: int = 0
    settings: tuple[str, ...] = ()
    replicas: int = 1
    kubernetes: KubernetesConfig = KubernetesConfig()
    nodes: tuple[Node, ...] = ()
    namespaces: tuple[Namespace, ...] = ()
    images: tuple[Image, ...] = ()
    secrets: tuple[Secret, ...] = ()
    files: dict[str, str] = {}
    events: tuple[AnyEvent, ...] = ()


class Found(_Data, frozen=True):
    """A plan that once broke an invariant, with the defect that it showed."""

    invariant: str
    defect: str
    plan: Plan


def write_found(found: Found, path: Path) -> None:
    """Writes it as indented JSON."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


def read_found(path: Path) -> Found:
    """Reads what `write_found` wrote. Raises msgspec.ValidationError."""
    return msgspec.json.decode(path.read_bytes(), type=Found)
