"""The settings: one tree of frozen Structs, the only place that declares a key, its default and its meaning.

The string under a field is its documentation: help text and the table of docs/settings.md are made from it. Of the
package this file imports only the pure rooms' types and `credential_sources`.
"""

import ast
import enum
import functools
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, get_args, get_type_hints

import msgspec

from extender.credential_sources import Cloud
from extender.placement.affinity import AffinityMode
from extender.placement.annotations import Choice
from extender.placement.gate import AfterGate, ImpossiblePods, UnknownImages
from extender.placement.policy import PreferenceBy
from extender.placement.tolerations import TolerationRule

Seconds = Annotated[float, msgspec.Meta(gt=0, le=31_536_000)]
Boost = Annotated[int, msgspec.Meta(ge=0, le=10)]
Count = Annotated[int, msgspec.Meta(ge=1, le=100_000_000)]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every section of the tree; refuses unknown keys."""


class LogConfig(Section, frozen=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe event that is written."""
    format: Literal["json", "console"] = "json"
    """`json` for machines, `console` for a person; always on standard error."""


class ClusterConfig(Section, frozen=True):
    mode: Literal["auto", "none"] = "auto"
    """`auto`: the cluster we run in, else the one of the kubeconfig; nodes and namespaces are watched. `none`: no
    cluster, so kube-scheduler must send whole nodes (`nodeCacheCapable: false`)."""
    kubeconfig: str = ""
    """Path of a kubeconfig file; empty: $KUBECONFIG, else ~/.kube/config, where we run outside a cluster."""
    context: str = ""
    """Context of the kubeconfig; empty: its current one."""
    stale_seconds: Annotated[float, msgspec.Meta(ge=0, le=31_536_000)] = 300.0
    """Age of the view of nodes or namespaces from which readiness fails; a healthy one is confirmed every few minutes
    at least. 0: an old view never fails readiness."""


class TlsConfig(Section, frozen=True):
    certificate: str = ""
    """PEM file of the server certificate and its chain; read again when it changes."""
    key: str = ""
    """PEM file of its private key; read again when it changes."""
    client_ca: str = ""
    """PEM file of the authorities whose client certificates are required; empty asks for none."""


class AdmissionTlsConfig(TlsConfig, frozen=True):
    self_managed: bool = False
    """The service makes its certificate and its authority, and renews them: see `admission.self_managed`. Then
    `certificate` and `key` stay empty."""


Days = Annotated[float, msgspec.Meta(gt=0, le=36_500)]


class SelfManagedConfig(Section, frozen=True):
    secret: str = "multiarch-webhook-identity"  # noqa: S105  # its name
    """Secret in our namespace that the replicas share, and that their leader makes and renews."""
    lease: str = "multiarch-extender-certificates"
    """Lease in our namespace by which one replica at a time renews that Secret; one of its own for each Secret."""
    service: str = "multiarch-webhook"
    """The webhook's Service, whose DNS names the certificate is for."""
    names: tuple[str, ...] = ()
    """More DNS names and IP addresses for the certificate, for API servers that call a URL."""
    configurations: tuple[str, ...] = ("multiarch-webhook",)
    """MutatingWebhookConfigurations that get `caBundle`; all of their webhooks are ours."""
    certificate_days: Days = 90.0
    """Life of a certificate; the next one is made when two thirds of it are over."""
    authority_days: Days = 730.0
    """Life of an authority; the next one is trusted beside it before it signs anything."""


class SchedulerConfig(Section, frozen=True):
    listen: str = "127.0.0.1:8880"
    """host:port of the scheduler verbs; an empty string switches the listener off."""
    tls: TlsConfig | None = None
    """Certificate files; null is allowed on a loopback address, elsewhere only with `insecure`."""
    insecure: bool = False
    """Serve plain HTTP on an address that is not loopback. Anyone who reaches it learns what your images run on."""
    wait_seconds: Annotated[float, msgspec.Meta(ge=0, le=30)] = 0.1
    """Longest time a filter call waits for lookups under way; every pod behind it in the scheduler waits as well."""
    pending: Choice = Choice.RETRY
    """When an image is pending: `retry` answers an error and the scheduler comes back in 1-10 s, `pass` lets every node
    through, `assume` takes the image to run on `assume`. With `ignorable: true` an error answer passes every node."""
    pending_limit_seconds: Seconds = 30.0
    """Counted from when the pod was first seen; after it a pending image is unknown."""
    unknown: Choice = Choice.PASS
    """When an image is unknown: `pass`, `retry` or `assume`, as above."""
    assume: tuple[str, ...] = ("linux/amd64",)
    """What `assume` takes such an image to run on: the operator's word. An image that is really arm64-only is then kept
    off arm64 nodes; it never earns a score, a toleration or an affinity."""


class GateConfig(Section, frozen=True):
    limit_seconds: Seconds = 300.0
    """Longest time a pod is held, counted from its creation; long enough for a push that comes after the pod."""
    then: AfterGate = AfterGate.PASS
    """What follows, and what is done at once about an image that waiting cannot make known: `pass` lets the pod go by
    what is known of its other images, `assume` takes the image to run on `scheduler.assume`."""
    lease: str = "multiarch-extender-gates"
    """Lease in our namespace by which one replica at a time lets pods go; the same for all whose pods it should be."""


class AdmissionConfig(Section, frozen=True):
    listen: str = ":8443"
    """host:port of the webhook, or :port for every address of every family; an empty string switches the listener
    off."""
    tls: AdmissionTlsConfig | None = AdmissionTlsConfig()
    """Certificate files, which the API server needs; null is allowed on a loopback address only."""
    self_managed: SelfManagedConfig = SelfManagedConfig()
    """What `tls.self_managed` makes, where and for whom. It needs rights on that Secret, on a Lease and on those
    configurations."""
    wait_seconds: Annotated[float, msgspec.Meta(ge=0, le=29)] = 1.5
    """Longest time one review waits for lookups; keep it below the webhook's timeoutSeconds."""
    tolerations: tuple[TolerationRule, ...] = (
        TolerationRule(
            key="k8smultiarcher",
            operator="Equal",
            value="arm64Supported",
            effect="NoSchedule",
            platforms=("linux/amd64", "linux/arm64"),
        ),
        TolerationRule(
            key="kubernetes.io/arch", operator="Equal", value="arm64", effect="NoSchedule", platforms=("linux/arm64",)
        ),
        TolerationRule(key="arch", operator="Equal", value="arm64", effect="NoSchedule", platforms=("linux/arm64",)),
    )
    """Each is added to a pod when every image of it runs on every one of the rule's `platforms`."""
    node_affinity: AffinityMode = AffinityMode.NONE
    """What is written for autoscalers and preemption to see: `required` keeps a pod on platforms its images have,
    `preferred` states the preference, `both` does both."""
    unknown: UnknownImages = UnknownImages.PASS
    """When an image is not known within `wait_seconds`: `pass` lets the pod through by what is known of the others,
    `gate` holds it with a scheduling gate until the image is known, `assume` takes the image to run on
    `scheduler.assume` where required affinity is written. `gate` also runs the controller that lets pods go."""
    impossible: ImpossiblePods = ImpossiblePods.PEND
    """When the images have no platform in common, or none that the pod's own selector and affinity allow: `pend` writes
    required affinity that no node satisfies, so that the pod waits with a reason, `pass` writes none, `deny` refuses
    the pod. `pend` needs required affinity; a pod that exists already waits under `deny` too."""
    gate: GateConfig = GateConfig()
    platforms_annotation: bool = False
    """Write into the annotation `platforms` of each pod what all its images have in common, for policies of other
    engines. Off, since pods are patched for it that need nothing else."""
    scheduler_name: str = ""
    """Given to every pod received that has no schedulerName or `default-scheduler`; empty changes none."""
    canary_seconds: Annotated[float, msgspec.Meta(ge=0, le=31_536_000)] = 60.0
    """How often each replica has the API server create a pod as a dry run in `canary_namespace`, which shows whether
    the webhook is reached: often enough for an alert within minutes. 0: never."""
    canary_namespace: str = ""
    """Namespace for that, which the webhook has to select, and in which the service needs the right to create pods. Its
    name is also what this installation's webhook marks such pods by. Empty: no pod is sent."""


class PreferredNodesConfig(Section, frozen=True):
    labels: dict[str, str] = {}
    """Labels of the nodes to which a preference may pull; {}: any."""
    without_resources: tuple[str, ...] = ("nvidia.com/gpu",)
    """Resources of nodes to which none pulls: they are precious. Pods that name one have no preference."""
    without_taints: tuple[str, ...] = ()
    """Keys of taints of nodes to which none pulls."""


class PlacementConfig(Section, frozen=True):
    mode: Literal["enforce", "observe"] = "enforce"
    """`observe`: decisions are recorded, without effect. The annotation `mode` of pods and namespaces overrides it."""
    preference: dict[str, Boost] = msgspec.field(default_factory=lambda: {"arm64": 10})
    """Score per architecture, 0-10, for pods whose every image is multi-arch; a map given here replaces this one."""
    preference_by: PreferenceBy = PreferenceBy.SCORE
    """`filter`: filter keeps only the nodes of the highest score among those asked about, and `prioritizeVerb` is left
    out."""
    preferred_nodes: PreferredNodesConfig = PreferredNodesConfig()
    ignore_runtime_classes: tuple[str, ...] = ()
    """Pods of these RuntimeClasses are left alone (wasm and the like)."""
    run_386_on_amd64: bool = False
    """amd64 nodes also run 386 images. containerd 1.6 does, CRI-O does not. containerd 2.3 runs single manifests, and
    refuses indexes without amd64 unless its `use_local_image_pull` is true."""
    run_arm_on_arm64: bool = False
    """arm64 nodes also run 32-bit arm images: by the same runtimes in the same way, if the cores can."""
    level_label: str = ""
    """Node label whose value states the node's level, such as v3 or amd64-v3; without it nodes are baseline."""


class DriftConfig(Section, frozen=True):
    check_seconds: Annotated[float, msgspec.Meta(ge=0, le=31_536_000)] = 0.0
    """How often registries are asked again for tags in use; 0: a tag that moved is noticed when a pod asks for it."""
    events: bool = False
    """Send events to workloads whose image has lost a platform that they need, or gained one; it needs rights to create
    events and to get ReplicaSets and Jobs."""


class OperationsConfig(Section, frozen=True):
    listen: str = ":8881"
    """host:port of /livez, /readyz and /metrics, plain HTTP, or :port for every address; an empty string switches the
    listener off."""
    metrics_listen: str = ""
    """Another host:port for /metrics, which `operations.listen` then does not answer; empty: the same."""


class CredentialProvidersConfig(Section, frozen=True):
    config: str = ""
    """The kubelet's CredentialProviderConfig file; its plugins are run as on a node."""
    bin_dir: str = ""
    """Folder of the plugins' programs."""


class RegistryConfig(Section, frozen=True):
    timeout_seconds: Seconds = 10.0
    """Longest time one registry exchange may take, redirects and token included."""
    concurrency_per_host: Annotated[int, msgspec.Meta(ge=1, le=256)] = 16
    """Lookups under way at once at one registry host; each has one request there at a time."""
    plain_http: tuple[str, ...] = ()
    """Registries (host or host:port, as images name them) that are spoken to without TLS."""
    allow: tuple[str, ...] = ("*",)
    """Globs of the registries and mirrors that are asked: host or host:port; one named inside is reached there too."""
    deny: tuple[str, ...] = ()
    """Globs of hosts that are never asked, not even as a token server or behind a redirect; deny wins over allow."""
    private_addresses: bool = True
    """Whether private addresses (RFC 1918, RFC 6598, IPv6 ULA) are reached; those that allow names are in any case."""
    ca_files: tuple[str, ...] = ()
    """PEM bundles trusted for registries, besides the system's."""
    docker_config: str = ""
    """Docker `config.json`: its `auths`, and the `credHelpers` and `credsStore` it names, which are run."""
    credential_providers: CredentialProvidersConfig = CredentialProvidersConfig()
    clouds: tuple[Cloud, ...] = ()
    """Clouds whose identity of our own pod is used for their registries."""
    hosts_directory: str = ""
    """Folder in containerd's `certs.d` layout (`hosts.toml` per registry): mirrors, authorities, client certificates;
    read again when it changes; empty: registries are asked themselves."""
    pull_secrets: bool = True
    """Read the pull secrets that pods name, by name and only when a lookup needs them; this needs the right to get
    secrets."""
    always_seconds: Seconds = 60.0
    """How long a tag's digest is fresh for imagePullPolicy Always and for the tag latest."""


class CacheConfig(Section, frozen=True):
    url: str = ""
    """Where what is known outlives a restart: `memory:` (nowhere), `sqlite:////path`, or
    `redis://[user:password@]host[:port][/database]` and `rediss://…` for several replicas (any server of Redis'
    protocol, no cluster of them; `?prefix=`, `password_file=`, `ca_file=`, `certificate_file=`, `key_file=`). Empty:
    SQLite in `$STATE_DIRECTORY`, else in the user's cache folder."""
    key_file: str = ""
    """A file of at least 32 random bytes that keys the names under which credentials are remembered. With it what
    private images run on survives restarts and is shared by replicas; without it only what is public does. A new key
    takes a restart."""
    size: Count = 50_000
    """Images kept in memory; the least recently used goes first, of namespaces that have more than their part. Images
    of many unusual platforms and long names count several times: 50,000 take 35 MB, and 120 MB at worst."""
    tag_seconds: Seconds = 900.0
    """How long a tag's digest is fresh; afterwards it is asked for again in the background by HEAD."""
    stale_seconds: Seconds = 86_400.0
    """How long a known answer still serves when the registry cannot be asked."""


class ShutdownConfig(Section, frozen=True):
    grace_seconds: Seconds = 20.0
    """Longest time from SIGTERM to exit: readiness fails first, requests in flight end, then listeners close."""
    linger_seconds: Annotated[float, msgspec.Meta(ge=0, le=31_536_000)] = 5.0
    """How long new requests are still answered after readiness fails, which callers learn late; less than the grace."""


class Config(Section, frozen=True):
    """Every setting with its default."""

    log: LogConfig = LogConfig()
    cluster: ClusterConfig = ClusterConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    admission: AdmissionConfig = AdmissionConfig()
    placement: PlacementConfig = msgspec.field(default_factory=PlacementConfig)
    drift: DriftConfig = DriftConfig()
    operations: OperationsConfig = OperationsConfig()
    registry: RegistryConfig = RegistryConfig()
    cache: CacheConfig = CacheConfig()
    shutdown: ShutdownConfig = ShutdownConfig()


class Setting(msgspec.Struct, frozen=True):
    """One key: its path, its default as YAML on one line, and its documentation."""

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
    documentation = _documentation(type(section))
    for name in section.__struct_fields__:
        value = getattr(section, name)
        if name in documentation:
            text = documentation[name] + _words_of(type(section), name)
            yield Setting(f"{prefix}{name}", msgspec.json.encode(value).decode(), text)
        if isinstance(value, Section):
            yield from _settings_of(value, f"{prefix}{name}.")


def _words_of(section: type[Section], field: str) -> str:
    """A sentence that names the values of a list of enum words; empty for any other field."""
    words = next(iter(get_args(get_type_hints(section)[field])), None)
    if not (isinstance(words, type) and issubclass(words, enum.StrEnum)):
        return ""
    return f" Any of {', '.join(f'`{word.value}`' for word in words)}."


def _documentation(section: type[Section]) -> Mapping[str, str]:
    """The strings under the fields of a section, and of those that it extends."""
    found: dict[str, str] = {}
    for declared in reversed(section.__mro__[: section.__mro__.index(Section)]):
        body = ast.parse(textwrap.dedent(inspect.getsource(declared))).body[0]
        assert isinstance(body, ast.ClassDef)  # noqa: S101 -- the source of a class is a class
        for field, text in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return found
