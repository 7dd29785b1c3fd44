"""The settings: one tree of frozen Structs, the only place that declares a key, its default and its meaning.

The description of a field is its documentation: help texts, the table of docs/settings.md and the schema of the chart's
values are made from it. What the fetcher is given too is in `registry_section`.
"""

import enum
import functools
from collections.abc import Iterator
from typing import Annotated, Literal, get_args, get_type_hints

import msgspec
from msgspec import Meta

from extender.config.registry_section import RegistryConfig, Seconds, Section
from extender.placement.affinity import AffinityMode
from extender.placement.gate import ImpossiblePods, UnknownImages
from extender.placement.policy import Choice, PreferenceBy
from extender.placement.tolerations import TolerationRule

Boost = Annotated[int, Meta(ge=0, le=10)]
Count = Annotated[int, Meta(ge=1, le=100_000_000)]


class LogConfig(Section, frozen=True):
    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Least severe event that is written.")
    ] = "info"


class TlsConfig(Section, frozen=True):
    certificate: Annotated[
        str, Meta(description="PEM file of the server certificate and its chain; read again when it changes.")
    ] = ""
    key: Annotated[str, Meta(description="PEM file of its private key; read again when it changes.")] = ""
    client_ca: Annotated[
        str,
        Meta(description="PEM file of the authorities whose client certificates are required; empty asks for none."),
    ] = ""
    self_managed: Annotated[
        tuple[str, ...],
        Meta(
            description="In place of `certificate` and `key`: what the service makes its own certificate for. The "
            "webhook's Service in our namespace, and DNS names and IP addresses by which API servers call a URL; "
            "international names as `xn--…`. The replicas share it in the Secret NAME-identity of `installation`."
        ),
    ] = ()


class SchedulerConfig(Section, frozen=True):
    listen: Annotated[
        str,
        Meta(
            description="host:port of the scheduler verbs, on a loopback address: kube-scheduler is in the same pod or "
            "on the same node. An empty string switches the listener off."
        ),
    ] = "127.0.0.1:8880"
    wait_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=30,
            description="Longest time a filter call waits for lookups under way, from the first call for the pod: "
            "later ones do not wait, since every pod behind it in the scheduler waits as well.",
        ),
    ] = 0.1
    pending: Annotated[
        Choice,
        Meta(
            description="When an image is pending: `retry` answers an error and the scheduler comes back in 1-10 s, "
            "`pass` lets every node through, `assume` takes the image to run on `assume`. With `ignorable: true` an "
            "error answer passes every node."
        ),
    ] = Choice.RETRY
    unknown: Annotated[
        Choice,
        Meta(
            description="When an image is unknown: `pass`, `retry` or `assume`, as above. It decides too about a held "
            "pod after `admission.gate.limit_seconds`, and at once about an image that waiting cannot make known: "
            "`pass` and `retry` remove the gate with what the other images require, `assume` writes required affinity."
        ),
    ] = Choice.PASS
    assume: Annotated[
        tuple[str, ...],
        Meta(
            description="What `assume` takes such an image to run on: the operator's word. An image that is really "
            "arm64-only is then kept off arm64 nodes. It earns no score and no toleration, and required affinity only "
            "under `admission.unknown: assume`."
        ),
    ] = ("linux/amd64",)


class GateConfig(Section, frozen=True):
    limit_seconds: Annotated[
        Seconds,
        Meta(
            description="Longest time a pod is held, counted from its creation; long enough for a push that comes "
            "after the pod. Then `scheduler.unknown` decides."
        ),
    ] = 300.0
    exempt_priority_classes: Annotated[
        tuple[str, ...],
        Meta(
            description="Priority classes whose pods are never held, beside system-node-critical and "
            "system-cluster-critical: those of what this service itself waits for."
        ),
    ] = ()
    policy: Annotated[
        str,
        Meta(
            description="MutatingAdmissionPolicy that the leader puts into force, by a binding of its name, once a dry "
            "run in the namespace NAME-canary of `installation` has shown that it holds pods; empty: none."
        ),
    ] = ""
    lease: Annotated[
        str,
        Meta(
            description="Lease in our namespace by which one replica at a time removes gates; the same for all that "
            "share the held pods."
        ),
    ] = "multiarch-extender-held-pods"


class AdmissionConfig(Section, frozen=True):
    listen: Annotated[
        str,
        Meta(
            description="host:port of the webhook, or :port for every address of every family; an empty string "
            "switches the listener off. With `tls: null` it speaks plain HTTP, on a loopback address only."
        ),
    ] = ":8443"
    tls: TlsConfig | None = TlsConfig()
    wait_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=29,
            description="Longest time one review waits for lookups; keep it below the webhook's timeoutSeconds.",
        ),
    ] = 1.5
    tolerations: Annotated[
        tuple[TolerationRule, ...],
        Meta(description="Each is added to a pod when every image of it runs on every one of the rule's `platforms`."),
    ] = (
        TolerationRule(
            key="kubernetes.io/arch", operator="Equal", value="arm64", effect="NoSchedule", platforms=("linux/arm64",)
        ),
        TolerationRule(key="arch", operator="Equal", value="arm64", effect="NoSchedule", platforms=("linux/arm64",)),
    )
    node_affinity: Annotated[
        AffinityMode,
        Meta(
            description="What is written for autoscalers and preemption to see: `required` keeps a pod on platforms "
            "its images have, `preferred` states the preference, `both` does both."
        ),
    ] = AffinityMode.REQUIRED
    unknown: Annotated[
        UnknownImages,
        Meta(
            description="When an image is not known within `wait_seconds`: `pass` lets the pod through by what is "
            "known of the others, `gate` holds it with a scheduling gate until the image is known, `assume` takes the "
            "image to run on `scheduler.assume` where required affinity is written. `gate` also runs the controller "
            "that removes the gate."
        ),
    ] = UnknownImages.PASS
    impossible: Annotated[
        ImpossiblePods,
        Meta(
            description="When the images have no platform in common, or none that the pod's own selector and affinity "
            "allow: `pend` writes required affinity that no node satisfies, so that the pod waits with a reason, "
            "`pass` writes none, `deny` refuses the pod. `pend` needs required affinity; a pod that exists already "
            "waits under `deny` too."
        ),
    ] = ImpossiblePods.PEND
    gate: GateConfig = GateConfig()
    platforms_annotation: Annotated[
        bool,
        Meta(
            description="Write into the annotation `platforms` of each pod what all its images have in common, for "
            "policies of other engines. Off, since pods are patched for it that need nothing else."
        ),
    ] = False
    scheduler_name: Annotated[
        str,
        Meta(
            description="Given to every pod received that has no schedulerName or `default-scheduler`; empty changes "
            "none."
        ),
    ] = ""
    guard_daemon_sets: Annotated[
        bool,
        Meta(
            description="Write required node affinity into the templates of DaemonSets whose images lack platforms, "
            "when these are created or changed, and hold pods that a DaemonSet makes for a node on which they "
            "cannot run. Off, such pods are counted and get an event."
        ),
    ] = False


class PlacementConfig(Section, frozen=True):
    mode: Annotated[
        Literal["enforce", "observe"],
        Meta(
            description="`observe`: decisions are recorded, without effect. The annotation `mode` of pods and "
            "namespaces overrides it."
        ),
    ] = "enforce"
    preference: Annotated[
        dict[str, Boost],
        Meta(
            description="Score per architecture, 0-10, for pods whose every image is multi-arch; a map given here "
            "replaces this one."
        ),
    ] = msgspec.field(default_factory=lambda: {"arm64": 10})
    preference_by: Annotated[
        PreferenceBy,
        Meta(
            description="`filter`: filter keeps only the nodes of the highest score among those asked about, and "
            "`prioritizeVerb` is left out."
        ),
    ] = PreferenceBy.SCORE
    preferred_nodes: Annotated[
        dict[str, str],
        Meta(
            description="Labels of the nodes to which a preference may pull; {}: any. None pulls to nodes with GPUs or "
            "other accelerators, whose pods have no preference."
        ),
    ] = msgspec.field(default_factory=dict)
    runtime_classes: Annotated[
        dict[str, tuple[str, ...]],
        Meta(
            description="The platforms that a RuntimeClass runs, such as `{rosetta: [linux/amd64]}`: its pods need an "
            "image of one of them, whatever the node is. `[]`: its pods are left alone (wasm and the like)."
        ),
    ] = msgspec.field(default_factory=dict)
    compatibility: Annotated[
        tuple[Literal["386-on-amd64", "arm-on-arm64"], ...],
        Meta(
            description="What nodes run beside their own: `386-on-amd64`, `arm-on-arm64` (32-bit arm, if the cores "
            "can). containerd 1.6 does both, CRI-O neither; containerd 2.3 runs single manifests, and refuses indexes "
            "without the node's own architecture unless its `use_local_image_pull` is true."
        ),
    ] = ()


class DriftConfig(Section, frozen=True):
    events: Annotated[
        bool,
        Meta(
            description="Send events to workloads whose image has lost a platform that they need, or gained one; it "
            "needs rights to create events and to get ReplicaSets and Jobs."
        ),
    ] = False


class OperationsConfig(Section, frozen=True):
    listen: Annotated[
        str,
        Meta(
            description="host:port of /livez, /readyz and /metrics, plain HTTP, or :port for every address; an empty "
            "string switches the listener off."
        ),
    ] = ":8881"


class CacheConfig(Section, frozen=True):
    url: Annotated[
        str,
        Meta(
            description="Where what is known outlives a restart: `memory:` (nowhere), `sqlite:////path`, or "
            "`redis://[user:password@]host[:port][/database]` and `rediss://…` for several replicas (any server of "
            "Redis' protocol, no cluster of them; `?prefix=`, `password_file=`, `ca_file=`, `certificate_file=`, "
            "`key_file=`). Empty: SQLite in `$STATE_DIRECTORY`, else in the user's cache folder."
        ),
    ] = ""
    key_file: Annotated[
        str,
        Meta(
            description="A file of at least 32 random bytes that keys the names under which credentials are "
            "remembered. With it what private images run on survives restarts and is shared by replicas; without it "
            "only what is public does. A new key takes a restart."
        ),
    ] = ""
    size: Annotated[
        Count,
        Meta(
            description="Images kept in memory; the least recently used goes first, of namespaces that have more than "
            "their part. Images of many unusual platforms and long names count several times: 50,000 take 35 MB, and "
            "120 MB at worst."
        ),
    ] = 50_000


class ShutdownConfig(Section, frozen=True):
    grace_seconds: Annotated[
        Seconds,
        Meta(
            description="Longest time from SIGTERM to exit: new requests are answered for a quarter of it, while "
            "readiness fails, then requests in flight end, then listeners close."
        ),
    ] = 20.0


class Config(Section, frozen=True):
    """Every setting with its default."""

    installation: Annotated[
        str,
        Meta(
            description="NAME of this part's objects: its MutatingWebhookConfiguration, and NAME-names if "
            "`admission.scheduler_name` is set, which trust the certificate that the service makes; the Secret "
            "NAME-identity with that; and the namespace NAME-canary, in which dry runs of pods show that the webhook "
            "is reached, if the service may create pods there."
        ),
    ] = "multiarch-webhook"
    log: LogConfig = LogConfig()
    cluster: Annotated[
        str,
        Meta(
            description="`auto`: the cluster we run in, else the current context of $KUBECONFIG or ~/.kube/config; "
            "nodes and namespaces are watched. `none`: no cluster, so kube-scheduler must send whole nodes "
            "(`nodeCacheCapable: false`). Else the path of a kubeconfig; `#NAME` behind it, or behind `auto`, is "
            "another context than its current one."
        ),
    ] = "auto"
    scheduler: SchedulerConfig = SchedulerConfig()
    admission: AdmissionConfig = AdmissionConfig()
    placement: PlacementConfig = msgspec.field(default_factory=PlacementConfig)
    drift: DriftConfig = DriftConfig()
    operations: OperationsConfig = OperationsConfig()
    registry: RegistryConfig = RegistryConfig()
    cache: CacheConfig = CacheConfig()
    shutdown: ShutdownConfig = ShutdownConfig()

    @property
    def has_cluster(self) -> bool:
        """Whether there is a cluster."""
        return self.cluster != "none"

    @property
    def identity_secret(self) -> str:
        """The Secret in our namespace with the certificate that the service makes."""
        return f"{self.installation}-identity"

    @property
    def canary_namespace(self) -> str:
        """Where canaries are created as dry runs; webhooks mark them by this name."""
        return f"{self.installation}-canary"

    @property
    def configurations(self) -> tuple[str, ...]:
        """The MutatingWebhookConfigurations of this part, all of whose webhooks are ours; the second may be missing."""
        return (self.installation, *((f"{self.installation}-names",) if self.admission.scheduler_name else ()))


class Setting(msgspec.Struct, frozen=True):
    """One key: its path, its default as JSON on one line, and what it means."""

    path: str
    default: str
    documentation: str

    @property
    def section(self) -> str:
        """The first key of the path."""
        return self.path.partition(".")[0]


@functools.cache
def settings() -> tuple[Setting, ...]:
    """Every setting, in the order of this file."""
    return tuple(_settings_of(Config(), ""))


def _settings_of(section: Section, prefix: str) -> Iterator[Setting]:
    kinds = get_type_hints(type(section), include_extras=True)
    for name in section.__struct_fields__:
        value = getattr(section, name)
        if text := _description(kinds[name]):
            yield Setting(f"{prefix}{name}", msgspec.json.encode(value).decode(), text)
        if isinstance(value, Section):
            yield from _settings_of(value, f"{prefix}{name}.")


def _description(kind: object) -> str:
    """The description of the annotation, and the values of a list of enum words; empty for a section without one."""
    text = "".join(each.description or "" for each in getattr(kind, "__metadata__", ()) if isinstance(each, Meta))
    word, *_ = (*get_args(getattr(kind, "__origin__", None)), None) if text else (None,)
    if isinstance(word, type) and issubclass(word, enum.StrEnum):
        return f"{text} Any of {', '.join(f'`{each.value}`' for each in word)}."
    return text
