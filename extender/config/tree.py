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
from extender.images.platform import ArchitectureName, PlatformName
from extender.images.stated import ImageRule
from extender.placement.affinity import AffinityMode
from extender.placement.annotations import Choice
from extender.placement.gate import ImpossiblePods, UnknownImages
from extender.placement.policy import PreferenceBy
from extender.placement.tolerations import TolerationRule

Boost = Annotated[int, Meta(ge=0, le=10)]
Count = Annotated[int, Meta(ge=1, le=100_000_000)]


class LogConfig(Section, frozen=True):
    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Least severe event that is written.")
    ] = "info"


class TlsConfig(Section, frozen=True):
    certificate: Annotated[str, Meta(description="PEM file of the server certificate and its chain.")] = ""
    key: Annotated[str, Meta(description="PEM file of its private key.")] = ""
    client_ca: Annotated[
        str,
        Meta(description="PEM file of the authorities whose client certificates are required."),
    ] = ""
    self_managed: Annotated[
        tuple[str, ...],
        Meta(
            description="Instead of `certificate` and `key`: names and addresses for which the service makes its own "
            "certificate. The first is the webhook's Service, whose name its MutatingWebhookConfiguration has too."
        ),
    ] = ()

    @property
    def service(self) -> str:
        """The name of the webhook's Service, and of its MutatingWebhookConfiguration; empty for given files."""
        return self.self_managed[0] if self.self_managed else ""

    @property
    def identity_secret(self) -> str:
        """The Secret in our namespace with the certificate that the service makes; empty for given files."""
        return f"{self.service}-identity" if self.self_managed else ""


class SchedulerConfig(Section, frozen=True):
    listen: Annotated[
        str,
        Meta(description="host:port of the scheduler verbs, on a loopback address; empty: off."),
    ] = "127.0.0.1:8880"
    wait_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=30,
            description="Longest time that filter calls for one pod wait for lookups; every pod behind it waits as "
            "well.",
        ),
    ] = 0.1
    pending: Annotated[
        Choice,
        Meta(
            description="When an image is pending: `retry` answers an error, and the scheduler comes back in 1-10 s; "
            "`pass` lets every node through; `assume` takes the image to run on `assume`."
        ),
    ] = Choice.RETRY
    unknown: Annotated[
        Choice,
        Meta(description="The same when an image is unknown, and for a held pod after `admission.gate.limit_seconds`."),
    ] = Choice.PASS
    assume: Annotated[
        tuple[PlatformName, ...],
        Meta(description="What `assume` takes such an image to run on."),
    ] = ("linux/amd64",)


class GateConfig(Section, frozen=True):
    limit_seconds: Annotated[
        Seconds,
        Meta(description="Longest time a pod is held; then `scheduler.unknown` decides."),
    ] = 300.0
    exempt_priority_classes: Annotated[
        tuple[str, ...],
        Meta(
            description="Priority classes whose pods are never held, beside system-node-critical and "
            "system-cluster-critical."
        ),
    ] = ()
    policy: Annotated[
        str,
        Meta(
            description="MutatingAdmissionPolicy that the leader puts into force once a dry run has shown that it "
            "holds pods."
        ),
    ] = ""
    probe_namespace: Annotated[
        str,
        Meta(description="Namespace of that dry run; the policy has to select it."),
    ] = "default"
    lease: Annotated[
        str,
        Meta(description="Lease by which one replica at a time removes gates."),
    ] = "multiarch-extender-held-pods"


class AdmissionConfig(Section, frozen=True):
    listen: Annotated[
        str,
        Meta(
            description="host:port of the webhook, or :port for every address; empty: off. `tls: null`: plain HTTP, "
            "on a loopback address only."
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
        Meta(description="Each is added to a pod if all its images run on all of the rule's `platforms`."),
    ] = (
        TolerationRule(
            key="kubernetes.io/arch", operator="Equal", value="arm64", effect="NoSchedule", platforms=("linux/arm64",)
        ),
        TolerationRule(key="arch", operator="Equal", value="arm64", effect="NoSchedule", platforms=("linux/arm64",)),
    )
    node_affinity: Annotated[
        AffinityMode,
        Meta(
            description="`required` keeps a pod on platforms that its images have, `preferred` writes the preference, "
            "`both` does both. Under `required` the annotation `prefer` is written too."
        ),
    ] = AffinityMode.REQUIRED
    unknown: Annotated[
        UnknownImages,
        Meta(
            description="When an image is not known in time: `pass` admits the pod by what is known of the others, "
            "`gate` holds it, `assume` takes the image to run on `scheduler.assume` if that leaves the pod a node."
        ),
    ] = UnknownImages.PASS
    impossible: Annotated[
        ImpossiblePods,
        Meta(
            description="When no node can be right: `pend` writes required node affinity that no node meets, `deny` "
            "refuses the pod."
        ),
    ] = ImpossiblePods.PEND
    gate: GateConfig = GateConfig()
    platforms_annotation: Annotated[
        bool,
        Meta(
            description="Write into the annotation `platforms` of each pod what all its images have in common, for "
            "policies."
        ),
    ] = False
    scheduler_name: Annotated[
        str,
        Meta(description="Given to pods that name no scheduler, or `default-scheduler`."),
    ] = ""
    guard_daemon_sets: Annotated[
        bool,
        Meta(
            description="Write required node affinity into the templates of DaemonSets whose images lack platforms, "
            "and hold pods that a DaemonSet makes for a wrong node."
        ),
    ] = False


class PlacementConfig(Section, frozen=True):
    mode: Annotated[
        Literal["enforce", "observe"],
        Meta(description="`observe` records decisions, without effect."),
    ] = "enforce"
    preference: Annotated[
        dict[ArchitectureName, Boost],
        Meta(description="Score per architecture, 0-10, for multi-arch pods."),
    ] = msgspec.field(default_factory=lambda: {"arm64": 10})
    preference_by: Annotated[
        PreferenceBy,
        Meta(description="`filter` keeps only the nodes of the highest score; leave `prioritizeVerb` out."),
    ] = PreferenceBy.SCORE
    runtime_classes: Annotated[
        dict[str, tuple[PlatformName, ...]],
        Meta(
            description="The platforms that a RuntimeClass runs, such as `{rosetta: [linux/amd64]}`; `[]`: its pods "
            "are left alone."
        ),
    ] = msgspec.field(default_factory=dict)
    images: Annotated[
        tuple[ImageRule, ...],
        Meta(
            description='What images run on by your word, such as `[{match: "docker.io/library/mongo:*", platforms: '
            "[linux/amd64]}]`: no registry is asked, and the first match counts. `[]`: never known."
        ),
    ] = ()
    compatibility: Annotated[
        tuple[Literal["386-on-amd64", "arm-on-arm64"], ...],
        Meta(
            description="What nodes run beside their own: `386-on-amd64`, `arm-on-arm64`. containerd 1.6 runs both, "
            "2.3 single manifests only, CRI-O neither."
        ),
    ] = ()


class OperationsConfig(Section, frozen=True):
    listen: Annotated[
        str,
        Meta(description="host:port of /livez, /readyz and /metrics, plain HTTP; empty: off."),
    ] = ":8881"


class CacheConfig(Section, frozen=True):
    url: Annotated[
        str,
        Meta(
            description="Where what is known outlives a restart: `memory:` (nowhere), `sqlite:////path`, or "
            "`rediss://…` for several replicas. Empty: SQLite in `$STATE_DIRECTORY`, else in the user's cache folder."
        ),
    ] = ""
    key_file: Annotated[
        str,
        Meta(description="A file of at least 32 random bytes, with which what private images run on is kept too."),
    ] = ""
    size: Annotated[
        Count,
        Meta(description="Images kept in memory: 50,000 take 35 MB, and 120 MB at worst."),
    ] = 50_000


class ShutdownConfig(Section, frozen=True):
    grace_seconds: Annotated[
        Seconds,
        Meta(description="Longest time from SIGTERM to exit."),
    ] = 20.0


class Config(Section, frozen=True):
    """Every setting with its default."""

    log: LogConfig = LogConfig()
    cluster: Annotated[
        str,
        Meta(
            description="`auto` is the cluster we run in, else $KUBECONFIG or ~/.kube/config. Or a kubeconfig's path, "
            "with `#CONTEXT`, or `none`: kube-scheduler must send whole nodes."
        ),
    ] = "auto"
    scheduler: SchedulerConfig = SchedulerConfig()
    admission: AdmissionConfig = AdmissionConfig()
    placement: PlacementConfig = msgspec.field(default_factory=PlacementConfig)
    operations: OperationsConfig = OperationsConfig()
    registry: RegistryConfig = RegistryConfig()
    cache: CacheConfig = CacheConfig()
    shutdown: ShutdownConfig = ShutdownConfig()

    @property
    def has_cluster(self) -> bool:
        return self.cluster != "none"


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
