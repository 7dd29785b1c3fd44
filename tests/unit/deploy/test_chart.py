"""The chart of deploy/helm: which objects come of which values, and which values are refused in which words.

It takes the program helm, which `.ci/run` builds; without it these tests are skipped, and say so.
"""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.cluster.node_trust import TRUST_OBJECTS
from extender.cluster.openshift_objects import RESOURCES
from extender.config.reading import load_config, parse_config
from extender.reports.installation import CheckName
from extender.service.rights import rights_of
from testbed.chart import (
    CHART,
    HELM_FOLDER,
    HelmMissing,
    RenderingRefused,
    find_helm,
    objects_of,
    render,
)
from testbed.objects import KubernetesObject
from tests.unit.deploy.roles import is_given, rights_given
from tools.chart.__main__ import MANIFESTS, manifest, manifest_names, values_schema
from tools.chart.schema import UndescribedValue, schema_of

Values = dict[str, Any]

OURS = "system:serviceaccount:multiarch-extender"
PRESETS = sorted(file.stem.removeprefix("values-") for file in CHART.glob("values-*.yaml"))
MODES: dict[str, Values] = {
    "webhook": {},
    "policy": {"modes": {"webhook": {"enabled": False}, "policy": {"enabled": True}}},
    "policy-and-webhook": {"modes": {"policy": {"enabled": True}}},
    "second": {"modes": {"webhook": {"enabled": False}, "secondScheduler": {"enabled": True}}},
    "default": {"modes": {"webhook": {"enabled": False}, "defaultScheduler": {"enabled": True}}},
    "all": {
        "modes": {
            "policy": {"enabled": True},
            "secondScheduler": {"enabled": True},
            "defaultScheduler": {"enabled": True},
        }
    },
    "all-but-webhook": {
        "modes": {
            "webhook": {"enabled": False},
            "policy": {"enabled": True},
            "secondScheduler": {"enabled": True},
            "defaultScheduler": {"enabled": True},
        }
    },
}


@pytest.fixture(scope="session")
def helm() -> Path:
    """The program; a test that takes it is skipped without one."""
    try:
        return find_helm()
    except HelmMissing as exc:
        pytest.skip(str(exc))


def values(text: str) -> Values:
    """Values from lines such as `webhook.port: 9443`, whose keys are paths."""
    made: Values = {}
    for path, value in yaml.safe_load(text).items():
        inner = made
        *parents, last = path.split(".")
        for name in parents:
            inner = inner.setdefault(name, {})
        inner[last] = value
    return made


def rendered(text: str = "", mode: str = "webhook") -> list[KubernetesObject]:
    """The objects of a mode with these values."""
    return objects_of(render(merged(MODES[mode], values(text) if text else {})))


def merged(below: Values, above: Values) -> Values:
    """Both, where `above` wins."""
    made = dict(below)
    for name, value in above.items():
        both = isinstance(value, dict) and isinstance(made.get(name), dict)
        made[name] = merged(made[name], value) if both else value
    return made


def one(objects: list[KubernetesObject], kind: str, name: str = "") -> KubernetesObject:
    """The only object of that kind, with that end of its name."""
    (found,) = (each for each in objects if each["kind"] == kind and each["metadata"]["name"].endswith(name))
    return found


def pod_of(objects: list[KubernetesObject]) -> KubernetesObject:
    """The pods' spec of the only workload."""
    (found,) = (each for each in objects if each["kind"] in ("Deployment", "DaemonSet"))
    spec: KubernetesObject = found["spec"]["template"]["spec"]
    return spec


def container_of(objects: list[KubernetesObject]) -> KubernetesObject:
    """The service's container."""
    spec = pod_of(objects)
    found: KubernetesObject
    (found,) = (
        each for each in spec.get("initContainers", []) + spec["containers"] if each["name"] == "multiarch-extender"
    )
    return found


def settings_of(objects: list[KubernetesObject]) -> KubernetesObject:
    """The service's settings."""
    (found,) = (each for each in objects if each["kind"] == "ConfigMap" and "config.yaml" in each["data"])
    settings: KubernetesObject = yaml.safe_load(found["data"]["config.yaml"])
    return settings


def scheduler_of(objects: list[KubernetesObject]) -> KubernetesObject:
    """kube-scheduler's file."""
    found: KubernetesObject = yaml.safe_load(one(objects, "ConfigMap")["data"]["scheduler.yaml"])
    return found


def webhook_of(objects: list[KubernetesObject]) -> KubernetesObject:
    """The webhook of pods."""
    found: KubernetesObject
    found, *_ = one(objects, "MutatingWebhookConfiguration")["webhooks"]
    return found


def verbs_of(objects: list[KubernetesObject]) -> dict[str, list[str]]:
    """The verbs of the service's role, by resource."""
    roles = [each for each in objects if each["kind"] == "ClusterRole"]
    role = next(each for each in roles if not each["metadata"]["name"].endswith("-gates"))
    return {each["resources"][0]: each["verbs"] for each in role["rules"]}


def canaries_of(objects: list[KubernetesObject]) -> list[str]:
    """The kinds of what canaries take, and whether the service is told where to send them."""
    kinds = [each["kind"] for each in objects if each["metadata"]["name"].endswith("-canary")]
    settings = settings_of(objects)["admission"]
    return [*sorted(kinds), *(["setting"] if "canary_namespace" in settings else [])]


def spread_of(objects: list[KubernetesObject]) -> list[str]:
    """The labels of nodes over whose values the pods are spread."""
    spec = pod_of(objects)
    apart = spec["affinity"].get("podAntiAffinity", {}).get("preferredDuringSchedulingIgnoredDuringExecution", [])
    weighed = spec.get("topologySpreadConstraints", [])
    return [*(each["podAffinityTerm"]["topologyKey"] for each in apart), *(each["topologyKey"] for each in weighed)]


def args_of_second(objects: list[KubernetesObject]) -> KubernetesObject:
    """kube-scheduler's container."""
    found: KubernetesObject
    (found,) = pod_of(objects)["containers"]
    return found


# --- what is made from the chart


def test_lint_finds_nothing(helm: Path) -> None:
    """With warnings as errors, for the values as they are."""
    done = subprocess.run([helm, "lint", "--strict", CHART], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", manifest_names())
def test_each_manifest_is_what_the_chart_renders(helm: Path, name: str) -> None:
    """`make manifests` writes them."""
    assert (MANIFESTS / f"{name}.yaml").read_text() == manifest(name)


def test_every_manifest_is_made_from_the_chart() -> None:
    """No file is written by hand."""
    assert {file.stem for file in MANIFESTS.iterdir()} == set(manifest_names())


def test_the_schema_is_what_the_values_say() -> None:
    """`make manifests` writes it."""
    assert (CHART / "values.schema.json").read_text() == values_schema()


def test_a_value_without_a_comment_is_an_error() -> None:
    """So that the schema's descriptions are complete."""
    with pytest.raises(UndescribedValue, match=r"outer\.inner has no comment"):
        schema_of("# Known.\nouter:\n  # Known.\n  other: 1\n  inner: 2\n")


def test_an_addition_to_the_schema_wins_over_what_the_default_says() -> None:
    """Such as a list of words for a text."""
    schema = schema_of('# A word.\n# @schema {"enum": ["a", "b"]}\nword: a\n')
    assert schema["properties"]["word"] == {"description": "A word.", "type": "string", "enum": ["a", "b"]}


def test_every_value_is_used_by_a_template() -> None:
    """A value that nothing reads would be accepted, and do nothing."""
    templates = "\n".join(file.read_text() for file in (CHART / "templates").iterdir())
    names = {path[-1] for path in _leaves(yaml.safe_load((CHART / "values.yaml").read_text()))}
    unused = {name for name in names if not re.search(rf"\.{name}\b", templates)}
    assert unused - {"enabled", "kind", "group"} == set()  # fields of a map that is written as a whole


def _leaves(tree: Values, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    whole = ("resources", "nodeSelector")
    return [
        leaf
        for name, value in tree.items()
        for leaf in (
            _leaves(value, (*path, name))
            if isinstance(value, dict) and value and name not in whole
            else [(*path, name)]
        )
    ]


# --- presets and modes


@pytest.mark.parametrize(
    ("preset", "mode"),
    [*(("", mode) for mode in MODES), *((preset, mode) for preset in PRESETS for mode in ("all", "all-but-webhook"))],
)
def test_the_service_accepts_the_settings_of_each_preset_in_each_mode(
    helm: Path, tmp_path: Path, preset: str, mode: str
) -> None:
    """Every ConfigMap with settings is read as the service reads it. Between them two modes have every part."""
    files = [CHART / f"values-{preset}.yaml"] if preset else []
    objects = objects_of(render(MODES[mode], files))
    found = [each for each in objects if each["kind"] == "ConfigMap" and "config.yaml" in each["data"]]
    for each in found:
        file = tmp_path / "config.yaml"
        file.write_text(each["data"]["config.yaml"])
        load_config(str(file))
    assert len(found) >= {"all": 3, "all-but-webhook": 3}.get(mode, 1)


def test_presets_are_those_that_the_documentation_names() -> None:
    """One for each kind of cluster."""
    assert PRESETS == ["aks", "eks-auto", "eks-karpenter", "gke", "k3s", "kind", "kubeadm", "openshift"]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_setting_of_a_preset_has_its_reason_beside_it(preset: str) -> None:
    """Each setting has a reason, on its line or above it."""
    text = (CHART / f"values-{preset}.yaml").read_text()
    said = False
    for line in text.splitlines():
        setting = re.match(r"^ *-? *[A-Za-z]\w*: +[^ #]", line) or re.match(r"^ *- \{", line)
        if "#" in line:
            said = True
        assert not setting or said, f"{preset}: {line}"
        said = said and not setting


# --- values and the objects that come of them

Read = Callable[[list[KubernetesObject]], object]

TABLE: list[tuple[str, str, str, Read, object]] = [
    ("replicas", "webhook", "modes.webhook.replicas: 5", lambda o: one(o, "Deployment")["spec"]["replicas"], 5),
    (
        "image",
        "webhook",
        "image.registry: r.example:5000",
        lambda o: container_of(o)["image"],
        "r.example:5000/multiarch-extender:0.1.0",
    ),
    (
        "tag",
        "webhook",
        "{image.registry: r, image.name: a/b, image.tag: '2'}",
        lambda o: container_of(o)["image"],
        "r/a/b:2",
    ),
    (
        "digest",
        "webhook",
        f"{{image.registry: r, image.tag: x, image.digest: 'sha256:{'a' * 64}'}}",
        lambda o: container_of(o)["image"],
        f"r/multiarch-extender@sha256:{'a' * 64}",
    ),
    (
        "global-registry",
        "webhook",
        "global.imageRegistry: mirror.example",
        lambda o: container_of(o)["image"],
        "mirror.example/multiarch-extender:0.1.0",
    ),
    (
        "global-registry-scheduler",
        "second",
        "global.imageRegistry: mirror.example",
        lambda o: args_of_second(o)["image"],
        "mirror.example/kube-scheduler:v1.36.3",
    ),
    (
        "pull-secrets",
        "webhook",
        "{global.imagePullSecrets: [a, {name: b}], image.pullSecrets: [c]}",
        lambda o: pod_of(o)["imagePullSecrets"],
        [{"name": "a"}, {"name": "b"}, {"name": "c"}],
    ),
    ("pull-policy", "webhook", "image.pullPolicy: Always", lambda o: container_of(o)["imagePullPolicy"], "Always"),
    (
        "architectures",
        "webhook",
        "image.architectures: [amd64]",
        lambda o: sorted({each["value"] for each in pod_of(o)["tolerations"]}),
        ["amd64"],
    ),
    (
        "architectures-affinity",
        "default",
        "image.architectures: [arm64]",
        lambda o: pod_of(o)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ][0]["matchExpressions"][-1]["values"],
        ["arm64"],
    ),
    (
        "port",
        "webhook",
        "webhook.port: 9443",
        lambda o: (container_of(o)["ports"][0]["containerPort"], settings_of(o)["admission"]["listen"]),
        (9443, ":9443"),
    ),
    ("default-port", "webhook", "", lambda o: container_of(o)["ports"][0]["containerPort"], 10250),
    (
        "host-network",
        "webhook",
        "{webhook.hostNetwork: true, webhook.port: 9443}",
        lambda o: (pod_of(o)["hostNetwork"], [each["hostPort"] for each in container_of(o)["ports"]]),
        (True, [9443, 8881]),
    ),
    (
        "url",
        "webhook",
        "webhook.url: https://hook.example:8443",
        lambda o: sorted(webhook_of(o)["clientConfig"]),
        ["url"],
    ),
    (
        "url-path",
        "webhook",
        "webhook.url: https://hook.example:8443",
        lambda o: webhook_of(o)["clientConfig"]["url"],
        "https://hook.example:8443/admission/pods",
    ),
    (
        "failure-policy",
        "webhook",
        "{webhook.failurePolicy: Fail, certificates.source: certManager}",
        lambda o: webhook_of(o)["failurePolicy"],
        "Fail",
    ),
    ("timeout", "webhook", "webhook.timeoutSeconds: 10", lambda o: webhook_of(o)["timeoutSeconds"], 10),
    (
        "canary-namespace",
        "webhook",
        "",
        lambda o: (one(o, "Namespace")["metadata"]["name"], settings_of(o)["admission"]["canary_namespace"]),
        ("multiarch-extender-webhook-canary", "multiarch-extender-webhook-canary"),
    ),
    (
        "canary-restricted",
        "webhook",
        "",
        lambda o: one(o, "Namespace")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"],
        "restricted",
    ),
    (
        "canary-opt-in",
        "webhook",
        (
            "{modes.webhook.namespaceSelector.matchLabels: {a: b}, modes.webhook.namespaceSelector.matchExpressions: "
            "[{key: c, operator: In, values: [d, e]}, {key: f, operator: Exists}, {key: g, operator: DoesNotExist}]}"
        ),
        lambda o: [one(o, "Namespace")["metadata"]["labels"].get(each) for each in "acfg"],
        ["b", "d", "true", None],
    ),
    (
        "canary-of-second",
        "second",
        "modes.secondScheduler.schedulerName: ours",
        lambda o: one(o, "Namespace")["metadata"]["labels"]["multiarch-extender.io/scheduler"],
        "ours",
    ),
    (
        "canary-of-each-part",
        "all",
        "",
        lambda o: sorted(each["metadata"]["name"] for each in o if each["kind"] == "Namespace"),
        ["multiarch-extender-scheduler-canary", "multiarch-extender-webhook-canary"],
    ),
    (
        "canary-role",
        "webhook",
        "",
        lambda o: (one(o, "Role", "-canary")["metadata"]["namespace"], one(o, "Role", "-canary")["rules"]),
        ("multiarch-extender-webhook-canary", [{"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}]),
    ),
    (
        "canary-account",
        "webhook",
        "",
        lambda o: one(o, "ValidatingAdmissionPolicy", "-canary")["spec"]["matchConditions"][0]["expression"],
        f"request.userInfo.username in ['{OURS}:multiarch-extender-webhook',\n  '{OURS}:multiarch-extender-doctor']",
    ),
    ("canary-of-none", "default", "", canaries_of, []),
    ("canary-off", "webhook", "canary.enabled: false", canaries_of, []),
    ("canary-never", "webhook", "config.admission.canary_seconds: 0", canaries_of, []),
    ("canary-without-webhook", "second", "modes.secondScheduler.webhook: false", canaries_of, []),
    (
        "canary-without-rbac",
        "webhook",
        "rbac.create: false",
        canaries_of,
        ["Namespace", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "setting"],
    ),
    (
        "excluded",
        "webhook",
        "webhook.excludeNamespaces: [team, kube-system]",
        lambda o: webhook_of(o)["namespaceSelector"]["matchExpressions"][-1]["values"],
        ["kube-system", "kube-node-lease", "kube-public", "multiarch-extender", "team"],
    ),
    (
        "opt-in",
        "webhook",
        "modes.webhook.namespaceSelector.matchLabels: {multiarch-extender.io/admission: enabled}",
        lambda o: webhook_of(o)["namespaceSelector"]["matchLabels"],
        {"multiarch-extender.io/admission": "enabled"},
    ),
    (
        "conditions",
        "webhook",
        "webhook.matchConditions: [{name: mine, expression: 'true'}]",
        lambda o: [each["name"] for each in webhook_of(o)["matchConditions"]][-1],
        "mine",
    ),
    (
        "client-certificates",
        "webhook",
        "{webhook.clientCaSecret: c, certificates.source: certManager}",
        lambda o: (
            settings_of(o)["admission"]["tls"]["client_ca"],
            next(each["secret"]["secretName"] for each in pod_of(o)["volumes"] if each["name"] == "client-ca"),
        ),
        ("/etc/multiarch-extender-client-ca/ca.crt", "c"),
    ),
    (
        "client-certificates-and-a-certificate-of-its-own",
        "webhook",
        "webhook.clientCaSecret: c",
        lambda o: settings_of(o)["admission"]["tls"],
        {"self_managed": True, "client_ca": "/etc/multiarch-extender-client-ca/ca.crt"},
    ),
    (
        "cert-manager",
        "webhook",
        "certificates.source: certManager",
        lambda o: sorted(each["metadata"]["name"] for each in o if each["apiVersion"] == "cert-manager.io/v1"),
        [
            "multiarch-extender-authority",
            "multiarch-extender-authority",
            "multiarch-extender-selfsigned",
            "multiarch-extender-webhook",
        ],
    ),
    (
        "cert-manager-injects",
        "webhook",
        "certificates.source: certManager",
        lambda o: one(o, "MutatingWebhookConfiguration")["metadata"]["annotations"],
        {"cert-manager.io/inject-ca-from": "multiarch-extender/multiarch-extender-webhook"},
    ),
    (
        "cert-manager-issuer",
        "webhook",
        (
            "{certificates.source: certManager, certificates.certManager.issuerRef.name: corp, "
            "certificates.certManager.issuerRef.kind: ClusterIssuer}"
        ),
        lambda o: one(o, "Certificate")["spec"]["issuerRef"],
        {"name": "corp", "kind": "ClusterIssuer"},
    ),
    (
        "self-managed",
        "webhook",
        "config: {admission: {self_managed: {certificate_days: 1}}}",
        lambda o: settings_of(o)["admission"]["self_managed"],
        {
            "secret": "multiarch-extender-webhook-identity",
            "names": ["multiarch-extender-webhook"],
            "configurations": ["multiarch-extender-webhook"],
            "certificate_days": 1,
        },
    ),
    (
        "self-managed-leaves-trust-to-the-service",
        "webhook",
        "",
        lambda o: webhook_of(o)["clientConfig"],
        {
            "service": {
                "name": "multiarch-extender-webhook",
                "namespace": "multiarch-extender",
                "path": "/admission/pods",
                "port": 443,
            }
        },
    ),
    (
        "self-managed-and-no-pod-without-the-webhook",
        "webhook",
        "webhook.failurePolicy: Fail",
        lambda o: (webhook_of(o)["failurePolicy"], settings_of(o)["admission"]["tls"]),
        ("Fail", {"self_managed": True}),
    ),
    (
        "self-managed-of-a-url",
        "webhook",
        "webhook.url: https://192.0.2.1:8443",
        lambda o: settings_of(o)["admission"]["self_managed"]["names"],
        ["multiarch-extender-webhook", "192.0.2.1"],
    ),
    (
        "self-managed-writes-no-file-to-disk",
        "webhook",
        "",
        lambda o: (
            [each["emptyDir"]["medium"] for each in pod_of(o)["volumes"] if each["name"] == "identity"],
            [each["mountPath"] for each in container_of(o)["volumeMounts"] if each["name"] == "identity"],
        ),
        (["Memory"], ["/tmp"]),
    ),
    (
        "secret-and-lease-have-nothing-that-an-upgrade-could-put-back",
        "webhook",
        "config: {admission: {unknown: gate}}",
        lambda o: [sorted(each) for each in o if each["kind"] in ("Secret", "Lease")],
        [["apiVersion", "kind", "metadata", "type"], ["apiVersion", "kind", "metadata"]],
    ),
    (
        "self-managed-rights",
        "webhook",
        "",
        lambda o: [
            (rule["resources"], rule["resourceNames"], rule["verbs"])
            for each in o
            if each["metadata"]["name"].endswith("-certificates")
            for rule in each.get("rules", [])
        ],
        [
            (["mutatingwebhookconfigurations"], ["multiarch-extender-webhook"], ["get", "patch"]),
            (["secrets"], ["multiarch-extender-webhook-identity"], ["get", "patch"]),
        ],
    ),
    (
        "no-bundle-of-ours",
        "webhook",
        "certificates.source: existingSecret",
        lambda o: "caBundle" in webhook_of(o)["clientConfig"],
        False,
    ),
    (
        "second-name",
        "second",
        "modes.secondScheduler.schedulerName: other",
        lambda o: (
            settings_of(o)["admission"]["scheduler_name"],
            webhook_of(o)["namespaceSelector"]["matchExpressions"][0]["values"],
        ),
        ("other", ["other"]),
    ),
    (
        "second-alone",
        "second",
        "modes.secondScheduler.webhook: false",
        lambda o: (
            settings_of(o)["admission"]["listen"],
            [each["kind"] for each in o if each["kind"] in ("Secret", "Service", "MutatingWebhookConfiguration")],
        ),
        ("", []),
    ),
    (
        "second-image",
        "second",
        "{modes.secondScheduler.image.registry: r, modes.secondScheduler.image.tag: v1.33.1}",
        lambda o: args_of_second(o)["image"],
        "r/kube-scheduler:v1.33.1",
    ),
    (
        "second-resources",
        "second",
        "modes.secondScheduler.resources.requests: {memory: 2Gi}",
        lambda o: args_of_second(o)["resources"]["requests"],
        {"cpu": "100m", "memory": "2Gi"},
    ),
    (
        "second-replicas",
        "second",
        "modes.secondScheduler.replicas: 3",
        lambda o: one(o, "Deployment")["spec"]["replicas"],
        3,
    ),
    (
        "second-configuration",
        "second",
        "modes.secondScheduler.configuration: {percentageOfNodesToScore: 30}",
        lambda o: scheduler_of(o)["percentageOfNodesToScore"],
        30,
    ),
    (
        "second-preference-by-score",
        "second",
        "config: {placement: {preference_by: score}}",
        lambda o: scheduler_of(o)["extenders"][0].get("prioritizeVerb"),
        "prioritize",
    ),
    (
        "second-preference-by-filter",
        "second",
        "modes.secondScheduler.config: {placement: {preference_by: filter}}",
        lambda o: scheduler_of(o)["extenders"][0].get("prioritizeVerb"),
        None,
    ),
    (
        "node-label",
        "default",
        "modes.defaultScheduler.nodeLabel: my/label",
        lambda o: pod_of(o)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ][0]["matchExpressions"][0],
        {"key": "my/label", "operator": "Exists"},
    ),
    ("settings", "webhook", "config: {log: {level: debug}}", lambda o: settings_of(o)["log"], {"level": "debug"}),
    (
        "settings-of-a-mode-win",
        "webhook",
        "{config: {registry: {timeout_seconds: 7, deny: [a]}}, modes.webhook.config: {registry: {timeout_seconds: 8}}}",
        lambda o: [settings_of(o)["registry"][name] for name in ("timeout_seconds", "deny")],
        [8, ["a"]],
    ),
    (
        "settings-over-the-charts",
        "webhook",
        "config: {admission: {node_affinity: both}}",
        lambda o: settings_of(o)["admission"]["node_affinity"],
        "both",
    ),
    ("memory", "webhook", "store.kind: memory", lambda o: settings_of(o)["cache"], {"url": "memory:"}),
    (
        "redis",
        "webhook",
        (
            "{store.kind: redis, store.redis.address: 'redis.example:6380', store.redis.username: me, "
            "store.redis.passwordSecret: p, store.redis.caSecret: c}"
        ),
        lambda o: settings_of(o)["cache"]["url"].split("?"),
        [
            "rediss://me@redis.example:6380/0",
            "password_file=/etc/multiarch-extender-redis/password&ca_file=/etc/multiarch-extender-redis-ca/ca.crt",
        ],
    ),
    (
        "valkey-without-tls",
        "webhook",
        "{store.kind: redis, store.redis.address: valkey, store.redis.tls: false}",
        lambda o: settings_of(o)["cache"],
        {"url": "redis://valkey/0"},
    ),
    (
        "key",
        "webhook",
        "store.keySecret: k",
        lambda o: settings_of(o)["cache"],
        {"key_file": "/etc/multiarch-extender-key/key"},
    ),
    (
        "authorities",
        "webhook",
        "{registries.caConfigMap: m, registries.caKeys: [a.crt, b.crt]}",
        lambda o: settings_of(o)["registry"],
        {"pull_secrets": False, "ca_files": ["/etc/multiarch-extender-ca/a.crt", "/etc/multiarch-extender-ca/b.crt"]},
    ),
    (
        "hosts",
        "webhook",
        "registries.hosts: {docker.io: 'server = \"https://m\"'}",
        lambda o: (settings_of(o)["registry"], one(o, "ConfigMap", "-hosts")["data"]),
        (
            {"pull_secrets": False, "mirrors": "/etc/multiarch-extender-hosts"},
            {"0": '# docker.io\nserver = "https://m"\n'},
        ),
    ),
    (
        "docker-config",
        "webhook",
        "registries.dockerConfigSecret: d",
        lambda o: settings_of(o)["registry"],
        {"pull_secrets": False, "docker_config": "/etc/multiarch-extender-docker/config.json"},
    ),
    (
        "account",
        "webhook",
        "serviceAccount.annotations: {iam.gke.io/gcp-service-account: a}",
        lambda o: one(o, "ServiceAccount")["metadata"]["annotations"],
        {"iam.gke.io/gcp-service-account": "a"},
    ),
    ("no-rbac", "second", "rbac.create: false", lambda o: [each for each in o if "rbac" in each["apiVersion"]], []),
    (
        "role-of-the-webhook",
        "webhook",
        "",
        verbs_of,
        {
            "nodes": ["get", "list", "watch"],
            "events": ["create"],
            "namespaces": ["list", "watch"],
        },
    ),
    (
        "role-for-secrets",
        "webhook",
        "config: {registry: {pull_secrets: true}}",
        lambda o: (verbs_of(o)["secrets"], settings_of(o)["registry"]),
        (["get"], {"pull_secrets": True}),
    ),
    (
        "roles-for-secrets-of-namespaces",
        "webhook",
        "config: {registry: {pull_secrets: [a, b]}}",
        lambda o: (
            sorted(verbs_of(o)),
            [
                (each["kind"], each["metadata"]["namespace"], each.get("rules", each.get("subjects")))
                for each in o
                if each["metadata"]["name"].endswith("-pull-secrets")
            ],
        ),
        (
            ["events", "namespaces", "nodes"],
            [
                *(("Role", where, [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]) for where in "ab"),
                *(
                    (
                        "RoleBinding",
                        where,
                        [
                            {
                                "kind": "ServiceAccount",
                                "name": "multiarch-extender-webhook",
                                "namespace": "multiarch-extender",
                            }
                        ],
                    )
                    for where in "ab"
                ),
            ],
        ),
    ),
    (
        "no-roles-for-an-empty-list",
        "webhook",
        "config: {registry: {pull_secrets: []}}",
        lambda o: [each for each in o if "secrets" in str(each.get("rules")) and "identity" not in str(each)],
        [],
    ),
    (
        "role-of-the-extender",
        "default",
        "",
        verbs_of,
        {
            "nodes": ["get", "list", "watch"],
            "pods": ["list", "watch"],
            "namespaces": ["list", "watch"],
        },
    ),
    (
        "role-for-events-of-drift",
        "webhook",
        "config: {drift: {events: true}}",
        lambda o: {name: verbs for name, verbs in verbs_of(o).items() if name not in ("nodes", "namespaces")},
        {"pods": ["list"], "events": ["create"], "replicasets": ["get"], "jobs": ["get"]},
    ),
    (
        "role-for-gates",
        "webhook",
        "config: {admission: {unknown: gate}}",
        lambda o: [rule["resources"] for rule in one(o, "ClusterRole", "-gates")["rules"]],
        [["pods"], ["events"]],
    ),
    (
        "role-for-gates-of-the-part-that-holds",
        "all-but-webhook",
        "modes.secondScheduler.config.admission.unknown: gate\nmodes.policy.enabled: false",
        lambda o: [each["metadata"]["name"] for each in o if each["kind"] == "ClusterRole" and "-gates" in str(each)],
        ["multiarch-extender-scheduler-gates"],
    ),
    (
        "role-to-let-go-of-what-was-held-before",
        "all",
        "{modes.policy.enabled: false, gates.releaseOnly: true}",
        lambda o: [each["metadata"]["name"] for each in o if each["kind"] == "ClusterRole" and "-gates" in str(each)],
        ["multiarch-extender-webhook-gates"],
    ),
    (
        "no-role-for-gates",
        "webhook",
        "",
        lambda o: [each for each in o if each["metadata"]["name"].endswith(("-gates", "-own-account", "-held-pods"))],
        [],
    ),
    (
        "gates-lease-is-made-and-the-service-makes-none",
        "webhook",
        "config: {admission: {unknown: gate}}",
        lambda o: (
            one(o, "Lease", "-held-pods")["metadata"]["name"],
            settings_of(o)["admission"]["gate"],
            one(o, "Role", "-gates")["rules"],
        ),
        (
            "multiarch-extender-held-pods",
            {"lease": "multiarch-extender-held-pods"},
            [
                {
                    "apiGroups": ["coordination.k8s.io"],
                    "resources": ["leases"],
                    "resourceNames": ["multiarch-extender-held-pods"],
                    "verbs": ["get", "patch"],
                }
            ],
        ),
    ),
    (
        "gates-lease-of-the-operator-is-the-services-to-make",
        "webhook",
        "config: {admission: {unknown: gate, gate: {lease: mine, limit_seconds: 9}}}",
        lambda o: (
            [each["metadata"]["name"] for each in o if each["kind"] == "Lease"],
            settings_of(o)["admission"]["gate"],
            [rule["verbs"] for rule in one(o, "Role", "-gates")["rules"]],
        ),
        (
            [],
            {"lease": "mine", "limit_seconds": 9},
            [["create"], ["get", "patch"]],
        ),
    ),
    (
        "gates-of-several-parts-have-one-lease",
        "all-but-webhook",
        "config: {admission: {unknown: gate}}",
        lambda o: (
            [each["metadata"]["name"] for each in o if each["kind"] == "Lease"],
            sorted(each["metadata"]["name"] for each in o if each["kind"] == "Role" and "-gates" in str(each)),
        ),
        (
            ["multiarch-extender-held-pods"],
            [
                "multiarch-extender-default-scheduler-gates",
                "multiarch-extender-policy-gates",
                "multiarch-extender-scheduler-gates",
            ],
        ),
    ),
    (
        "workloads",
        "webhook",
        "{webhook.excludeNamespaces: [team], webhook.url: 'https://a'}",
        lambda o: (
            [each["clientConfig"]["url"] for each in one(o, "MutatingWebhookConfiguration")["webhooks"]],
            one(o, "MutatingWebhookConfiguration")["webhooks"][1]["namespaceSelector"]["matchExpressions"],
            settings_of(o)["admission"].get("guard_daemon_sets"),
        ),
        (
            ["https://a/admission/pods", "https://a/admission/workloads"],
            [
                {
                    "key": "kubernetes.io/metadata.name",
                    "operator": "NotIn",
                    "values": ["kube-system", "kube-node-lease", "kube-public", "multiarch-extender", "team"],
                }
            ],
            None,
        ),
    ),
    (
        "workloads-guarded",
        "webhook",
        "modes.webhook.workloads: guard",
        lambda o: (
            len(one(o, "MutatingWebhookConfiguration")["webhooks"]),
            settings_of(o)["admission"]["guard_daemon_sets"],
        ),
        (2, True),
    ),
    (
        "no-workloads",
        "webhook",
        "modes.webhook.workloads: 'off'",
        lambda o: len(one(o, "MutatingWebhookConfiguration")["webhooks"]),
        1,
    ),
    (
        "no-workloads-without-quotes",
        "webhook",
        "modes.webhook.workloads: off",
        lambda o: len(one(o, "MutatingWebhookConfiguration")["webhooks"]),
        1,
    ),
    (
        "verify-off-without-quotes",
        "webhook",
        "config.registry.verify: off",
        lambda o: parse_config(yaml.safe_dump(settings_of(o)), "config.yaml").registry.verify,
        "off",
    ),
    (
        "scheduler-named-by-a-webhook-that-fails-closed",
        "second",
        "{modes.secondScheduler.outage.namedBy: webhook, modes.secondScheduler.schedulerName: ours}",
        lambda o: (
            one(o, "MutatingWebhookConfiguration", "-names")["webhooks"][0]["failurePolicy"],
            one(o, "MutatingWebhookConfiguration", "-names")["webhooks"][0]["clientConfig"]["service"]["path"],
            one(o, "MutatingWebhookConfiguration", "-names")["webhooks"][0]["namespaceSelector"]["matchExpressions"][0][
                "values"
            ],
            settings_of(o)["admission"]["self_managed"]["configurations"],
            one(o, "ClusterRole", "-certificates")["rules"][0]["resourceNames"],
        ),
        (
            "Fail",
            "/admission/scheduler-names",
            ["ours"],
            ["multiarch-extender-scheduler", "multiarch-extender-scheduler-names"],
            ["multiarch-extender-scheduler", "multiarch-extender-scheduler-names"],
        ),
    ),
    (
        "scheduler-named-by-a-policy",
        "second",
        (
            "{modes.secondScheduler.outage.namedBy: policy, modes.secondScheduler.schedulerName: ours, "
            "modes.secondScheduler.webhook: false}"
        ),
        lambda o: (
            one(o, "MutatingAdmissionPolicy", "-scheduler-name")["spec"]["matchConstraints"]["namespaceSelector"][
                "matchLabels"
            ],
            "value: 'ours'" in one(o, "MutatingAdmissionPolicy")["spec"]["mutations"][0]["jsonPatch"]["expression"],
            "multiarch-scheduler" in str(one(o, "MutatingAdmissionPolicy")),
        ),
        ({"multiarch-extender.io/scheduler": "ours"}, True, False),
    ),
    (
        "policy-alone",
        "policy",
        "",
        lambda o: (
            sorted(settings_of(o)["admission"].items(), key=str),
            settings_of(o)["scheduler"],
            [each["name"] for each in container_of(o)["ports"]],
            [
                each["kind"]
                for each in o
                if each["kind"] in ("Service", "Secret", "MutatingWebhookConfiguration", "Certificate", "Namespace")
            ],
        ),
        (
            [
                ("canary_namespace", "multiarch-extender-policy-canary"),
                ("gate", {"lease": "multiarch-extender-held-pods", "policy": "multiarch-extender-gate"}),
                ("listen", ""),
                ("node_affinity", "required"),
                ("unknown", "gate"),
            ],
            {"listen": ""},
            ["operations"],
            ["Namespace"],
        ),
    ),
    (
        "policy-role",
        "policy",
        "",
        lambda o: {
            (resource, verb)
            for each in o
            if each["kind"] == "ClusterRole"
            for rule in each["rules"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        },
        {
            *((resource, verb) for resource in ("nodes", "namespaces") for verb in ("list", "watch")),
            *(("pods", verb) for verb in ("get", "list", "watch", "patch")),
            ("events", "create"),
            ("mutatingadmissionpolicies", "get"),
            *(("mutatingadmissionpolicybindings", verb) for verb in ("get", "create", "patch")),
        },
    ),
    (
        "policy-of-the-webhooks-pods",
        "policy-and-webhook",
        "",
        lambda o: (
            [each["metadata"]["name"] for each in o if each["kind"] == "Deployment"],
            settings_of(o)["admission"]["unknown"],
            settings_of(o)["admission"]["gate"]["policy"],
            [each for each in o if each["kind"] == "MutatingAdmissionPolicyBinding"],
        ),
        (["multiarch-extender-webhook"], "gate", "multiarch-extender-gate", []),
    ),
    (
        "policy-and-webhook-select-the-canary",
        "policy-and-webhook",
        "{modes.policy.namespaceSelector.matchLabels: {a: b}, modes.webhook.namespaceSelector.matchLabels: {c: d}}",
        lambda o: one(o, "Namespace", "-canary")["metadata"]["labels"].items() >= {("a", "b"), ("c", "d")},
        True,
    ),
    (
        "policy-of-what-is-observed",
        "policy",
        "config: {placement: {mode: observe, runtime_classes: {wasm: [], rosetta: [linux/amd64], kata: []}}}",
        lambda o: (
            one(o, "MutatingAdmissionPolicy")["spec"]["variables"][-1]["expression"],
            one(o, "MutatingAdmissionPolicy")["spec"]["matchConditions"][-1]["expression"],
        ),
        (
            "size(variables.modes) > 0 && variables.modes[0] == 'enforce'",
            "!(object.spec.?runtimeClassName.orValue('') in ['kata', 'wasm'])",
        ),
    ),
    (
        "policy-of-scheduler-names-of-what-is-observed",
        "second",
        "{modes.secondScheduler.outage.namedBy: policy, config.placement.mode: observe}",
        lambda o: one(o, "MutatingAdmissionPolicy")["spec"]["variables"][-1]["expression"],
        "size(variables.modes) > 0 && variables.modes[0] == 'enforce'",
    ),
    (
        "classes-that-are-never-held",
        "policy-and-webhook",
        "gates.exemptPriorityClasses: [storage]",
        lambda o: (
            one(o, "MutatingAdmissionPolicy")["spec"]["matchConditions"][-1]["expression"],
            settings_of(o)["admission"]["gate"]["exempt_priority_classes"],
            "not-critical" in str(webhook_of(o)),
        ),
        (
            (
                "!(object.spec.?priorityClassName.orValue('') in "
                "['system-node-critical', 'system-cluster-critical', 'storage'])"
            ),
            ["storage"],
            False,
        ),
    ),
    (
        "conditions-on-pods-hold-in-the-policies-too",
        "policy",
        (
            "{webhook.matchConditions: [{name: mine, expression: 'true'}], modes.secondScheduler.enabled: true, "
            "modes.secondScheduler.outage.namedBy: policy}"
        ),
        lambda o: [
            each["metadata"]["name"]
            for each in o
            if each["kind"] == "MutatingAdmissionPolicy"
            and each["spec"]["matchConditions"][-1] == {"name": "mine", "expression": "true"}
        ],
        ["multiarch-extender-gate", "multiarch-extender-scheduler-name"],
    ),
    *(
        (
            f"the-second-schedulers-webhook-leaves-held-{name}",
            mode,
            text,
            lambda o: [
                settings_of([each])["admission"].get("unknown", "pass")
                for each in o
                if each["kind"] == "ConfigMap" and each["metadata"]["name"].endswith("-scheduler")
            ],
            [expected],
        )
        for name, mode, text, expected in (
            ("what-a-policy-holds", "policy", "modes.secondScheduler.enabled: true", "gate"),
            (
                "what-the-webhook-holds",
                "webhook",
                "{modes.secondScheduler.enabled: true, modes.webhook.config: {admission: {unknown: gate}}}",
                "gate",
            ),
            ("nothing-where-none-is-held", "webhook", "modes.secondScheduler.enabled: true", "pass"),
            (
                "nothing-without-a-webhook",
                "policy",
                "{modes.secondScheduler.enabled: true, modes.secondScheduler.webhook: false}",
                "pass",
            ),
        )
    ),
    (
        "quota-of-the-policy-alone",
        "policy",
        "priorityClass.quota: 50",
        lambda o: one(o, "ResourceQuota")["spec"]["scopeSelector"]["matchExpressions"][0]["values"],
        ["system-cluster-critical"],
    ),
    (
        "critical-pods-are-refused-by-no-outage",
        "webhook",
        "webhook.failurePolicy: Fail",
        lambda o: webhook_of(o)["matchConditions"][-1]["expression"],
        (
            "!has(object.spec.priorityClassName) || "
            "!(object.spec.priorityClassName in ['system-node-critical', 'system-cluster-critical'])"
        ),
    ),
    (
        "policy-namespaces",
        "policy",
        (
            "{modes.policy.namespaceSelector.matchLabels: {a: b}, modes.policy.namespaceSelector.matchExpressions: "
            "[{key: c, operator: Exists}], webhook.excludeNamespaces: [team]}"
        ),
        lambda o: one(o, "MutatingAdmissionPolicy")["spec"]["matchConstraints"]["namespaceSelector"],
        {
            "matchLabels": {"a": "b"},
            "matchExpressions": [
                {"key": "c", "operator": "Exists"},
                {
                    "key": "kubernetes.io/metadata.name",
                    "operator": "NotIn",
                    "values": ["kube-system", "kube-node-lease", "kube-public", "multiarch-extender", "team"],
                },
            ],
        },
    ),
    (
        "policy-on-no-host-network",
        "policy",
        "{webhook.hostNetwork: true, webhook.port: 9443}",
        lambda o: ("hostNetwork" in pod_of(o), container_of(o)["ports"]),
        (False, [{"name": "operations", "containerPort": 8881}]),
    ),
    (
        "policy-replicas",
        "policy",
        "{modes.policy.replicas: 3, modes.policy.config: {log: {level: debug}}}",
        lambda o: (one(o, "Deployment")["spec"]["replicas"], settings_of(o)["log"]),
        (3, {"level": "debug"}),
    ),
    (
        "policy-ingress",
        "policy",
        "networkPolicy.ingress.enabled: true",
        lambda o: one(o, "NetworkPolicy")["spec"]["ingress"],
        [{"ports": [{"protocol": "TCP", "port": 8881}]}],
    ),
    (
        "own-account-of-each-part-and-of-the-schedulers-no-bindings",
        "all-but-webhook",
        "config: {admission: {unknown: gate}}",
        lambda o: one(o, "ValidatingAdmissionPolicy", "-own-account")["spec"]["matchConditions"][0]["expression"],
        (
            "request.userInfo.username in ["
            "'system:serviceaccount:multiarch-extender:multiarch-extender-default-scheduler', "
            "'system:serviceaccount:multiarch-extender:multiarch-extender-policy'] || "
            "request.userInfo.username == 'system:serviceaccount:multiarch-extender:multiarch-extender-scheduler' && "
            "request.operation == 'UPDATE' && request.?subResource.orValue('') == ''"
        ),
    ),
    (
        "own-account-free",
        "policy",
        "rbac.ownAccountPolicy: false",
        lambda o: {each["metadata"]["name"] for each in o if each["kind"].startswith("Validating")},
        {"multiarch-extender-policy-canary"},
    ),
    (
        "common-labels",
        "webhook",
        "commonLabels: {team: a}",
        lambda o: {each["metadata"]["labels"]["team"] for each in o},
        {"a"},
    ),
    (
        "common-labels-select-nothing",
        "webhook",
        "commonLabels: {team: a}",
        lambda o: "team" in one(o, "Deployment")["spec"]["selector"]["matchLabels"],
        False,
    ),
    (
        "pod-labels",
        "webhook",
        "podLabels: {a: b}",
        lambda o: one(o, "Deployment")["spec"]["template"]["metadata"]["labels"]["a"],
        "b",
    ),
    (
        "pod-annotations",
        "webhook",
        "podAnnotations: {a: b}",
        lambda o: one(o, "Deployment")["spec"]["template"]["metadata"]["annotations"]["a"],
        "b",
    ),
    (
        "node-selector",
        "webhook",
        "nodeSelector: {pool: system}",
        lambda o: pod_of(o)["nodeSelector"],
        {"kubernetes.io/os": "linux", "pool": "system"},
    ),
    (
        "tolerations",
        "webhook",
        "tolerations: [{operator: Exists}]",
        lambda o: pod_of(o)["tolerations"][-1],
        {"operator": "Exists"},
    ),
    (
        "priority",
        "webhook",
        "priorityClass.name: ''",
        lambda o: ("priorityClassName" in pod_of(o), [each for each in o if each["kind"] == "ResourceQuota"]),
        (False, []),
    ),
    ("quota", "webhook", "priorityClass.quota: 7", lambda o: one(o, "ResourceQuota")["spec"]["hard"], {"pods": "7"}),
    (
        "spread",
        "webhook",
        "",
        spread_of,
        ["kubernetes.io/hostname", "topology.kubernetes.io/zone"],
    ),
    (
        "budget",
        "webhook",
        "",
        lambda o: one(o, "PodDisruptionBudget")["spec"]["maxUnavailable"],
        1,
    ),
    (
        "no-budget",
        "webhook",
        "podDisruptionBudget.enabled: false",
        lambda o: [each for each in o if each["kind"] == "PodDisruptionBudget"],
        [],
    ),
    (
        "openshift-user",
        "webhook",
        "platformAssignsUser: true",
        lambda o: sorted(pod_of(o)["securityContext"]),
        ["runAsNonRoot", "seccompProfile"],
    ),
    (
        "resources",
        "webhook",
        "resources.limits: {memory: 1Gi}",
        lambda o: container_of(o)["resources"]["limits"],
        {"memory": "1Gi"},
    ),
    (
        "ingress",
        "webhook",
        "{networkPolicy.ingress.enabled: true, networkPolicy.ingress.apiServer: [10.0.0.0/28]}",
        lambda o: one(o, "NetworkPolicy")["spec"]["ingress"][0],
        {"from": [{"ipBlock": {"cidr": "10.0.0.0/28"}}], "ports": [{"protocol": "TCP", "port": 10250}]},
    ),
    (
        "ingress-of-metrics",
        "webhook",
        (
            "{networkPolicy.ingress.enabled: true, networkPolicy.ingress.apiServer: [10.0.0.0/28], "
            "networkPolicy.ingress.operations: [{podSelector: {}}]}"
        ),
        lambda o: one(o, "NetworkPolicy")["spec"]["ingress"][1]["from"],
        [{"podSelector": {}}],
    ),
    (
        "egress",
        "webhook",
        (
            "{networkPolicy.egress.enabled: true, networkPolicy.egress.apiServer: [10.0.0.1/32], "
            "networkPolicy.egress.apiServerPort: 443}"
        ),
        lambda o: one(o, "NetworkPolicy")["spec"]["egress"][0],
        {"to": [{"ipBlock": {"cidr": "10.0.0.1/32"}}], "ports": [{"protocol": "TCP", "port": 443}]},
    ),
    (
        "egress-more",
        "webhook",
        (
            "{networkPolicy.egress.enabled: true, networkPolicy.egress.apiServer: [10.0.0.1/32], "
            "networkPolicy.egress.more: [{ports: [{port: 3128}]}]}"
        ),
        lambda o: one(o, "NetworkPolicy")["spec"]["egress"][-1],
        {"ports": [{"port": 3128}]},
    ),
    (
        "service-monitor",
        "webhook",
        "{monitoring.serviceMonitor.enabled: true, monitoring.serviceMonitor.labels: {release: p}}",
        lambda o: (
            one(o, "ServiceMonitor")["metadata"]["labels"]["release"],
            one(o, "ServiceMonitor")["spec"]["endpoints"],
        ),
        ("p", [{"port": "operations", "interval": "30s"}]),
    ),
    (
        "prometheus-rule",
        "default",
        "{monitoring.prometheusRule.enabled: true, monitoring.prometheusRule.labels: {release: p}}",
        lambda o: (
            one(o, "PrometheusRule")["metadata"]["labels"]["release"],
            one(o, "PrometheusRule")["spec"],
        ),
        ("p", yaml.safe_load((CHART / "files" / "rules.yaml").read_text())),
    ),
    (
        "dashboard",
        "webhook",
        (
            "{monitoring.dashboard.enabled: true, monitoring.dashboard.labels: {team: a}, "
            "monitoring.dashboard.annotations: {grafana_folder: Clusters}}"
        ),
        lambda o: (
            [one(o, "ConfigMap", "-dashboard")["metadata"]["labels"][name] for name in ("grafana_dashboard", "team")],
            one(o, "ConfigMap", "-dashboard")["metadata"]["annotations"],
            one(o, "ConfigMap", "-dashboard")["data"],
        ),
        (
            ["1", "a"],
            {"grafana_folder": "Clusters"},
            {"multiarch-extender.json": (CHART / "files" / "dashboard.json").read_text()},
        ),
    ),
    (
        "namespace",
        "webhook",
        "{namespace.create: true, commonLabels: {a: b}}",
        lambda o: one(o, "Namespace", "multiarch-extender")["metadata"]["labels"]["a"],
        "b",
    ),
    (
        "environment",
        "webhook",
        "extraEnv: [{name: HTTPS_PROXY, value: 'http://p:3128'}]",
        lambda o: container_of(o)["env"][-1],
        {"name": "HTTPS_PROXY", "value": "http://p:3128"},
    ),
    (
        "volumes",
        "webhook",
        "{extraVolumes: [{name: v, emptyDir: {}}], extraVolumeMounts: [{name: v, mountPath: /v}]}",
        lambda o: (pod_of(o)["volumes"][-1], container_of(o)["volumeMounts"][-1]),
        ({"name": "v", "emptyDir": {}}, {"name": "v", "mountPath": "/v"}),
    ),
    (
        "extra-objects",
        "webhook",
        (
            "extraObjects: [{apiVersion: v1, kind: Pod, metadata: {name: '{{ .Release.Name }}-a'}}, "
            '"apiVersion: v1\\nkind: Pod\\nmetadata: {name: b}"]'
        ),
        lambda o: sorted(each["metadata"]["name"] for each in o if each["kind"] == "Pod"),
        ["b", "multiarch-extender-a"],
    ),
    (
        "name",
        "webhook",
        "modes.webhook.name: mine",
        lambda o: {
            one(o, kind)["metadata"]["name"]
            for kind in ("Deployment", "Service", "ServiceAccount", "ConfigMap", "MutatingWebhookConfiguration")
        },
        {"mine"},
    ),
    (
        "full-name",
        "webhook",
        "fullnameOverride: mine",
        lambda o: one(o, "Deployment")["metadata"]["name"],
        "mine-webhook",
    ),
    (
        "grace",
        "webhook",
        "config: {shutdown: {grace_seconds: 45.5}}",
        lambda o: pod_of(o)["terminationGracePeriodSeconds"],
        56,
    ),
]


@pytest.mark.parametrize(
    ("mode", "text", "read", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_what_comes_of_a_value(helm: Path, mode: str, text: str, read: Read, expected: object) -> None:
    """One value or few, and the fields of the objects that they decide."""
    assert read(rendered(text, mode)) == expected


def hooks(text: str = "", mode: str = "webhook", *, uninstall: bool = False) -> list[KubernetesObject]:
    """The objects of Helm's hooks with these values: of those before an uninstallation, or of all others."""
    objects = objects_of(render(merged(MODES[mode], values(text) if text else {}), hooks=True))
    events = [(each["metadata"].get("annotations") or {}).get("helm.sh/hook") for each in objects]
    pairs = zip(objects, events, strict=True)
    return [each for each, event in pairs if event and (event == "pre-delete") is uninstall]


def checks_of(objects: list[KubernetesObject], kind: str) -> list[str]:
    """The checks that the hook of that kind makes."""
    workload = one(objects, kind)
    spec = workload["spec"] if kind == "Pod" else workload["spec"]["template"]["spec"]
    return [each.partition("=")[2] for each in spec["containers"][0]["args"] if each.startswith("--only=")]


@pytest.mark.parametrize(
    ("mode", "text", "expected"),
    [
        ("webhook", "", ["Job", "Pod"]),
        ("second", "", ["Job", "Pod"]),
        ("default", "", ["Pod"]),
        ("all", "", ["Job", "Pod"]),
        ("webhook", "doctor.test: false", ["Job"]),
        ("webhook", "doctor.afterInstall: false", ["Pod"]),
        ("webhook", "canary.enabled: false", ["Pod"]),
        ("webhook", "certificates.source: certManager", ["Job", "Pod"]),
        ("webhook", "certificates.source: existingSecret", ["Pod"]),
        (
            "webhook",
            "certificates: {source: existingSecret, caBundle: '-----BEGIN CERTIFICATE-----'}",
            ["Job", "Pod"],
        ),
        ("webhook", "rbac.create: false", []),
        ("policy", "doctor.test: false", []),
        ("policy", "", ["Pod"]),
    ],
)
def test_which_hooks_there_are(helm: Path, mode: str, text: str, expected: list[str]) -> None:
    """A check after an installation would fail where something is the user's to do first."""
    found = hooks(text, mode)
    assert sorted(each["kind"] for each in found if each["kind"] in ("Pod", "Job")) == expected
    assert bool(found) == bool(expected)


def test_a_hook_leaves_nothing_but_a_pod_that_found_something_wrong(helm: Path) -> None:
    """The account and its rights go in any case, and are there before the pod."""
    for each in hooks():
        annotations = each["metadata"]["annotations"]
        policy = set(annotations["helm.sh/hook-delete-policy"].split(","))
        events = set(annotations["helm.sh/hook"].split(","))
        if each["kind"] in ("Pod", "Job"):
            assert policy == {"before-hook-creation", "hook-succeeded"}
            assert events == ({"test"} if each["kind"] == "Pod" else {"post-install"})
        else:
            assert policy == {"before-hook-creation", "hook-succeeded", "hook-failed"}
            assert events == {"test", "post-install"}
            assert int(annotations["helm.sh/hook-weight"]) < 0


@pytest.mark.parametrize("mode", ["webhook", "policy", "second", "default"])
def test_mirror_objects_are_read_where_the_settings_say_so(helm: Path, mode: str) -> None:
    """Each kind is listed and watched, and nothing else is done to it."""
    groups = {"config.openshift.io", "operator.openshift.io"}
    watched = {
        (rule["apiGroups"][0], plural)
        for each in rendered("config.registry.mirrors: openshift", mode)
        if each["kind"] == "ClusterRole"
        for rule in each["rules"]
        if rule["apiGroups"][0] in groups and set(rule["verbs"]) == {"list", "watch"}
        for plural in rule["resources"]
    }
    assert watched == {(each.path.split("/")[2], each.name) for each in RESOURCES}
    assert not any(group in str(rendered("", mode)) for group in groups)


def test_what_nodes_of_openshift_trust_is_read_by_name(helm: Path) -> None:
    """Nothing else of these namespaces is, and nothing is written there."""
    objects = rendered("config.registry: {mirrors: openshift, pull_secrets: false}", "webhook")
    spaces = {each.namespace for each in TRUST_OBJECTS}
    roles = [each for each in objects if each["kind"] == "Role" and each["metadata"]["namespace"] in spaces]
    given = {
        (verb, resource, role["metadata"]["namespace"], name)
        for role in roles
        for rule in role["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
        for name in rule["resourceNames"]
    }
    assert given == {("get", *each) for each in TRUST_OBJECTS}
    bound = [each for each in objects if each["kind"] == "RoleBinding" and each["metadata"]["namespace"] in spaces]
    assert {each["subjects"][0]["name"] for each in bound} == {one(objects, "ServiceAccount")["metadata"]["name"]}


def test_a_hook_makes_the_checks_that_its_account_can_make(helm: Path) -> None:
    """A dry run where there is a namespace for it; the scheduler's file where the chart has it."""
    everything = set(checks_of(hooks(), "Pod"))
    assert everything == {*CheckName} - {"workloads", "certificate", "mirrors", "registries"}
    assert everything - set(checks_of(hooks("canary.enabled: false"), "Pod")) == {"probe"}
    assert everything - set(checks_of(hooks(mode="all"), "Pod")) == {"scheduler"}
    after = set(checks_of(hooks(), "Job"))
    assert after == {"pods", "settings", "rights", "webhook", "namespaces", "timeout", "probe"}


def test_the_pod_of_a_hook_is_no_replica_and_runs_where_replicas_do(helm: Path) -> None:
    """No Service, budget or Deployment selects it; tolerations, image and security are theirs."""
    objects = rendered()
    pods = one(hooks(), "Pod")
    labels = pods["metadata"]["labels"]
    selectors = [one(objects, "Service")["spec"]["selector"]]
    selectors += [
        one(objects, kind)["spec"]["selector"]["matchLabels"] for kind in ("Deployment", "PodDisruptionBudget")
    ]
    assert not any(selector.items() <= labels.items() for selector in selectors)
    ours, theirs = pods["spec"], pod_of(objects)
    for field in ("tolerations", "nodeSelector", "securityContext"):
        assert ours[field] == theirs[field]
    assert ours["affinity"] == {"nodeAffinity": theirs["affinity"]["nodeAffinity"]}
    for field in ("image", "imagePullPolicy", "securityContext"):
        assert ours["containers"][0][field] == container_of(objects)[field]


def test_every_mount_of_the_service_is_a_volume_of_the_pod(helm: Path) -> None:
    """All kinds of files at once; a name of one that the other lacks would keep the pod from being made."""
    text = """{store.kind: redis, store.redis.address: r, store.redis.passwordSecret: p, store.redis.caSecret: c,
        store.keySecret: k, registries.caConfigMap: m, registries.hosts: {'r:5000': ''},
        registries.dockerConfigSecret: d, webhook.clientCaSecret: t, certificates.source: existingSecret}"""
    objects = rendered(text)
    mounts = [each["name"] for each in container_of(objects)["volumeMounts"]]
    assert sorted(mounts) == sorted(each["name"] for each in pod_of(objects)["volumes"])
    assert len(set(mounts)) == 10


@pytest.mark.parametrize("source", ["selfManaged", "certManager", "existingSecret"])
def test_a_network_policy_takes_no_client_certificate_away(helm: Path, source: str) -> None:
    """With both, a caller needs the address and the certificate: the settings are those without the policy."""
    text = f"{{webhook.clientCaSecret: c, certificates.source: {source}}}"
    policy = ", networkPolicy.ingress.enabled: true, networkPolicy.ingress.apiServer: [10.0.0.0/28]}"
    behind = rendered(text.removesuffix("}") + policy)
    assert settings_of(behind) == settings_of(rendered(text))
    assert settings_of(behind)["admission"]["tls"]["client_ca"]
    assert one(behind, "NetworkPolicy")


@pytest.mark.parametrize(
    ("mode", "kind", "text"),
    [
        ("webhook", "Deployment", "config: {log: {level: debug}}"),
        ("policy", "Deployment", "gates.exemptPriorityClasses: [storage]"),
        ("default", "DaemonSet", "config: {scheduler: {assume: [linux/arm64]}}"),
        ("second", "Deployment", "modes.secondScheduler.configuration: {percentageOfNodesToScore: 30}"),
        ("second", "Deployment", "modes.secondScheduler.schedulerName: other"),
    ],
)
def test_a_change_of_what_is_read_at_the_start_makes_new_pods(helm: Path, mode: str, kind: str, text: str) -> None:
    """The checksum is that of every file of the ConfigMap, kube-scheduler's too."""
    made = [one(rendered(each, mode), kind)["spec"]["template"]["metadata"]["annotations"] for each in ("", "", text)]
    assert made[0] == made[1] != made[2]


@pytest.mark.parametrize(
    ("mode", "text", "expected"),
    [
        ("webhook", "", "Default"),
        ("webhook", "dnsPolicy: ClusterFirst", "ClusterFirst"),
        ("webhook", "{store.kind: redis, store.redis.address: redis.example.com}", "Default"),
        ("webhook", "{store.kind: redis, store.redis.address: '10.0.0.7:6379'}", "Default"),
        ("webhook", "{store.kind: redis, store.redis.address: redis}", "ClusterFirst"),
        ("policy", "{store.kind: redis, store.redis.address: 'redis.store:6380'}", "ClusterFirst"),
        ("second", "{store.kind: redis, store.redis.address: 'redis.store.svc.cluster.local.'}", "ClusterFirst"),
        ("default", "{store.kind: redis, store.redis.address: redis.store.svc}", "ClusterFirstWithHostNet"),
        (
            "webhook",
            "{webhook.hostNetwork: true, webhook.port: 9443, dnsPolicy: ClusterFirst}",
            "ClusterFirstWithHostNet",
        ),
        ("webhook", "extraEnv: [{name: HTTPS_PROXY, value: 'http://proxy.web.svc:3128'}]", "ClusterFirst"),
        ("webhook", "extraEnv: [{name: https_proxy, value: proxy}]", "ClusterFirst"),
        ("webhook", "extraEnv: [{name: HTTPS_PROXY, value: 'http://proxy.example.com:3128'}]", "Default"),
        ("webhook", "extraEnv: [{name: NO_PROXY, value: '.svc'}]", "Default"),
        ("webhook", "registries.hosts: {docker.io: 'server = \"https://mirror.gcr.io\"'}", "Default"),
        ("webhook", "registries.hosts: {docker.io: '[host.\"http://registry.tools:5000\"]'}", "ClusterFirst"),
        ("webhook", "registries.hosts: {'registry.tools.svc:5000': ''}", "ClusterFirst"),
        ("webhook", "config: {registry: {plain_http: ['registry:5000']}}", "ClusterFirst"),
        ("webhook", "config: {registry: {allow: ['docker.io', '*.example.com']}}", "Default"),
        ("webhook", "modes.webhook.config: {registry: {allow: ['registry.tools.svc:5000']}}", "ClusterFirst"),
        ("webhook", "config: {registry: {mirrors: openshift}}", "ClusterFirst"),
    ],
)
def test_names_of_services_are_asked_of_the_clusters_name_service(
    helm: Path, mode: str, text: str, expected: str
) -> None:
    """The node's does not know them; else its answers are those by which the container runtime pulls."""
    assert pod_of(rendered(text, mode))["dnsPolicy"] == expected


@pytest.mark.parametrize(
    "text",
    [
        "store: {kind: redis, redis: {address: 'r.example:6380'}}, more: [{ports: [{protocol: TCP, port: 6380}]}]",
        "extraEnv: [{name: HTTPS_PROXY, value: 'http://p.example.com:3128'}], more: [{to: [{podSelector: {}}]}]",
        "config: {registry: {clouds: [gcp]}}, more: [{ports: [{protocol: TCP, port: 80}]}]",
        "config: {registry: {clouds: [ecr]}}, serviceAccount.annotations: {eks.amazonaws.com/role-arn: a}",
        "registries.hosts: {docker.io: 'server = \"https://mirror.example.com\"'}",
    ],
)
def test_egress_that_lets_through_what_the_values_name_is_taken(helm: Path, text: str) -> None:
    """By a rule with the port, or by one for all ports; registries on public addresses need none."""
    given = text.replace(" more:", " networkPolicy.egress.more:")
    egress = "networkPolicy.egress.enabled: true, networkPolicy.egress.apiServer: [10.0.0.1/32]"
    assert one(rendered(f"{{{given}, {egress}}}"), "NetworkPolicy", "-egress")


def test_a_name_with_a_registry_and_an_image_that_is_loaded_need_none_more(helm: Path) -> None:
    """As for `kind load docker-image`."""
    for text in ("{image.registry: '', image.name: r.example/app}", "{image.registry: '', image.pullPolicy: Never}"):
        assert container_of(rendered(text))["image"].split("/")[-1].startswith(("app:", "multiarch-extender:"))


def test_labels_of_pods_win_over_common_ones_and_none_is_given_twice(helm: Path) -> None:
    """A key that is written twice would be refused by a strict reader."""
    text = render(values("{commonLabels: {team: a}, podLabels: {team: b}}"), only="webhook.yaml")
    template = one(objects_of(text), "Deployment")["spec"]["template"]
    assert template["metadata"]["labels"]["team"] == "b"
    assert text.count("team: b") == 1


def test_a_live_pod_is_not_killed_while_it_is_not_ready(helm: Path) -> None:
    """What is not ready waits for the API server: another container would wait as long."""
    for mode in ("webhook", "policy", "second", "default"):
        container = container_of(rendered(mode=mode))
        paths = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
        assert paths == {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}


@pytest.mark.parametrize("mode", ["webhook", "policy", "policy-and-webhook", "second", "default", "all"])
def test_no_secret_is_read_and_no_pod_patched_unless_a_setting_takes_it(helm: Path, mode: str) -> None:
    """In all namespaces; where pods are held, they are patched."""
    rules = [rule for each in rendered(mode=mode) if each["kind"] == "ClusterRole" for rule in each["rules"]]
    assert not any("secrets" in rule["resources"] for rule in rules)
    patched = any("pods" in rule["resources"] and "patch" in rule["verbs"] for rule in rules)
    assert patched is (mode in ("policy", "policy-and-webhook", "all"))


def test_without_canaries_the_policy_is_in_force_from_the_start(helm: Path) -> None:
    """The chart makes the binding, and nothing waits for a dry run."""
    objects = rendered("canary.enabled: false", "policy")
    assert one(objects, "MutatingAdmissionPolicyBinding")["spec"] == {"policyName": "multiarch-extender-gate"}
    assert canaries_of(objects) == []
    assert "policy" not in settings_of(objects)["admission"]["gate"]
    assert "mutatingadmissionpolicybindings" not in str([each.get("rules") for each in objects])


@pytest.mark.parametrize("mode", ["policy", "webhook"])
@pytest.mark.parametrize(
    "expressions",
    [
        "{key: kubernetes.io/metadata.name, operator: In, values: [team, multiarch-extender-MODE-canary]}",
        "{key: kubernetes.io/metadata.name, operator: NotIn, values: [team]}",
        "{key: kubernetes.io/metadata.name, operator: Exists}",
        "{key: a, operator: In, values: [u, v]}, {key: a, operator: NotIn, values: [u]}",
        "{key: a, operator: Exists}, {key: a, operator: NotIn, values: ['true']}",
        "{key: a, operator: In, values: [u, v]}, {key: a, operator: In, values: [w, v]}",
        "{key: b, operator: DoesNotExist}, {key: a, operator: NotIn, values: [x]}",
    ],
)
def test_the_canarys_namespace_meets_the_selector(helm: Path, mode: str, expressions: str) -> None:
    """By its labels or its name, whatever expressions there are."""
    selector = f"[{expressions}]".replace("MODE", mode)
    objects = rendered(f"modes.{mode}.namespaceSelector.matchExpressions: {selector}", mode)
    found = one(objects, "Namespace", "-canary")["metadata"]
    labels = {**found["labels"], "kubernetes.io/metadata.name": found["name"]}
    for each in yaml.safe_load(selector):
        has, right = each["key"] in labels, labels.get(each["key"]) in each.get("values", [])
        assert {"In": right, "NotIn": not right, "Exists": has, "DoesNotExist": not has}[each["operator"]], each


@pytest.mark.parametrize("mode", ["webhook", "policy", "second", "default", "all"])
def test_a_quota_is_made_only_where_it_is_asked_for(helm: Path, mode: str) -> None:
    """It would cap the pods of others in the namespace."""
    assert [each for each in rendered(mode=mode) if each["kind"] == "ResourceQuota"] == []
    given = objects_of(render(MODES["webhook"], [CHART / "values-gke.yaml"], release="r"))
    assert one(given, "ResourceQuota")["metadata"]["name"] == "r-multiarch-extender-critical-pods"


def test_the_check_after_an_installation_goes_on_longer_than_helm_waits(helm: Path) -> None:
    """Helm's --timeout ends it, so that a node may be bought meanwhile; an upgrade waits for no such check."""
    job = one(hooks(), "Job")
    (wait,) = (each for each in job["spec"]["template"]["spec"]["containers"][0]["args"] if each.startswith("--wait="))
    assert wait == "--wait=3600"
    assert job["spec"]["activeDeadlineSeconds"] > 3600
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "post-install"


@pytest.mark.parametrize(
    ("version", "image", "gate", "probe"),
    [
        ("v1.30.4", "v1.30.4", False, "/healthz"),
        ("v1.32.1-eks-1a2b3c", "v1.32.1", False, "/readyz"),
        ("v1.35.2-gke.1389000", "v1.35.2", True, "/readyz"),
        ("v1.36.3+k3s1", "v1.36.3", True, "/readyz"),
        ("1.36", "v1.36.0", True, "/readyz"),
    ],
)
def test_kube_scheduler_is_of_the_clusters_version(
    helm: Path, version: str, image: str, gate: bool, probe: str
) -> None:
    """With the flags and paths that this version knows: an unknown gate ends kube-scheduler."""
    container = args_of_second(objects_of(render(MODES["second"], kubernetes=version)))
    assert container["image"] == f"registry.k8s.io/kube-scheduler:{image}"
    assert ("--feature-gates=SchedulerPopFromBackoffQ=false" in container["command"]) is gate
    assert container["readinessProbe"]["httpGet"]["path"] == probe


def test_as_a_part_of_another_chart(helm: Path, tmp_path: Path) -> None:
    """A parent passes globals of its own and `enabled`, and other parts of it have values of the same names."""
    parent = tmp_path / "parent"
    (parent / "charts").mkdir(parents=True)
    (parent / "charts" / CHART.name).symlink_to(CHART)
    chart = {"apiVersion": "v2", "name": "parent", "version": "1.0.0"}
    dependency = {"name": CHART.name, "version": "0.1.0", "condition": f"{CHART.name}.enabled"}
    (parent / "Chart.yaml").write_text(yaml.safe_dump({**chart, "dependencies": [dependency]}))
    globals_ = {"imageRegistry": "mirror.example", "theirs": {"a": 1}}
    (parent / "values.yaml").write_text(yaml.safe_dump({"global": globals_, CHART.name: {"enabled": True}}))
    objects = objects_of(render(chart=parent, release="shop"))
    assert container_of(objects)["image"] == "mirror.example/multiarch-extender:0.1.0"
    assert one(objects, "Deployment")["metadata"]["name"] == "shop-multiarch-extender-webhook"
    assert objects_of(render({CHART.name: {"enabled": False}}, chart=parent)) == []


def test_two_releases_share_no_name_and_no_pod(helm: Path) -> None:
    """Cluster-wide objects included."""
    first, second = (
        objects_of(render(merged(MODES["all"], values("priorityClass.quota: 50")), release=name))
        for name in ("blue", "green")
    )
    names = [{(each["kind"], each["metadata"]["name"]) for each in objects} for objects in (first, second)]
    assert names[0] & names[1] == set()
    selectors = [one(objects, "Deployment", "-webhook")["spec"]["selector"] for objects in (first, second)]
    assert selectors[0] != selectors[1]


# --- before an uninstallation


@pytest.mark.parametrize(
    ("mode", "text", "first"),
    [
        (
            "policy",
            "",
            [
                "MutatingAdmissionPolicy/multiarch-extender-gate",
                "MutatingAdmissionPolicyBinding/multiarch-extender-gate",
            ],
        ),
        (
            "policy-and-webhook",
            "",
            [
                "MutatingAdmissionPolicy/multiarch-extender-gate",
                "MutatingAdmissionPolicyBinding/multiarch-extender-gate",
                "MutatingWebhookConfiguration/multiarch-extender-webhook",
            ],
        ),
        (
            "webhook",
            "config: {admission: {unknown: gate}}",
            ["MutatingWebhookConfiguration/multiarch-extender-webhook"],
        ),
    ],
)
def test_what_has_pods_held_goes_first_and_held_pods_are_let_go(
    helm: Path, mode: str, text: str, first: list[str]
) -> None:
    """By an account that may delete these objects, and list and patch pods; it is there at the end alone."""
    objects = hooks(text, mode, uninstall=True)
    assert [each["kind"] for each in objects] == ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Job"]
    assert {each["metadata"]["annotations"]["helm.sh/hook"] for each in objects} == {"pre-delete"}
    weights = [int(each["metadata"]["annotations"]["helm.sh/hook-weight"]) for each in objects]
    assert weights == sorted(weights)
    assert weights[-2] < weights[-1]
    rules = one(objects, "ClusterRole")["rules"]
    assert [rule["verbs"] for rule in rules] == [["list", "patch"], *(["delete"] for _ in first)]
    assert [rule["resourceNames"] for rule in rules[1:]] == [[each.partition("/")[2]] for each in first]
    (container,) = one(objects, "Job")["spec"]["template"]["spec"]["containers"]
    deletions = [f"--first-delete={each}" for each in first]
    assert container["args"] == ["ungate", "--all-namespaces", *deletions, "--seconds=60", "--lenient"]


def test_an_uninstallation_is_held_up_for_a_limited_time(helm: Path) -> None:
    """The program ends by itself, before the Job's time is over; and Helm waits five minutes unless told otherwise."""
    job = one(hooks(mode="policy", uninstall=True), "Job")["spec"]
    assert job["activeDeadlineSeconds"] == 90
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    assert "--seconds=60" in job["template"]["spec"]["containers"][0]["args"]


@pytest.mark.parametrize(("mode", "text"), [("webhook", ""), ("all", "modes.policy.enabled: false"), ("default", "")])
def test_where_no_pod_is_held_nothing_comes_before_an_uninstallation(helm: Path, mode: str, text: str) -> None:
    """Helm then waits for nothing."""
    assert hooks(text, mode, uninstall=True) == []


@pytest.mark.parametrize(("policy", "found"), [("Always", "IfNotPresent"), ("Never", "Never")])
def test_before_an_uninstallation_the_image_that_is_there_will_do(helm: Path, policy: str, found: str) -> None:
    """On a node where a pod of ours runs."""
    spec = one(hooks(f"image.pullPolicy: {policy}", "policy", uninstall=True), "Job")["spec"]["template"]["spec"]
    assert spec["containers"][0]["imagePullPolicy"] == found
    (term,) = spec["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    labels = term["podAffinityTerm"]["labelSelector"]["matchLabels"]
    deployment = one(rendered(mode="policy"), "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert labels.items() <= deployment.items()


def test_the_operator_may_do_without(helm: Path) -> None:
    """Or without the roles, which are then the operator's to make."""
    assert hooks("uninstall.ungate: false", "policy", uninstall=True) == []
    assert [each["kind"] for each in hooks("rbac.create: false", "policy", uninstall=True)] == ["ServiceAccount", "Job"]


def test_manifests_have_no_job_of_an_uninstallation() -> None:
    """`kubectl apply` would run it."""
    assert not any("helm.sh/hook" in file.read_text() for file in MANIFESTS.iterdir())


# --- wrong values

REFUSED: list[tuple[str, str]] = [
    ("modes.webhook.enabled: 'yes'", r"/modes/webhook/enabled': got string, want boolean"),
    ("modes.webhook: true", r"/modes/webhook': got boolean, want object"),
    ("modes.policy.replicas: 0", r"/modes/policy/replicas': minimum: got 0, want 1"),
    ("modes.policy.webhook: true", r"/modes/policy': additional properties 'webhook' not allowed"),
    (
        "modes.secondScheduler.outage.namedBy: both",
        r"/modes/secondScheduler/outage/namedBy': value must be one of 'nothing', 'webhook', 'policy'",
    ),
    ("modes.webhook.workloads: jobs", r"/modes/webhook/workloads': value must be one of 'off', 'warn', 'guard', false"),
    ("networkPolicy.ingress.operations: [a]", r"/networkPolicy/ingress/operations/0': got string, want object"),
    ("rbac.ownAccountPolicy: 1", r"/rbac/ownAccountPolicy': got number, want boolean"),
    ("modes.webhok.enabled: true", r"/modes': additional properties 'webhok' not allowed"),
    ("replicas: 3", r"at '': additional properties 'replicas' not allowed"),
    ("modes.webhook.replicas: 0", r"/modes/webhook/replicas': minimum: got 0, want 1"),
    ("modes.webhook.replicas: '2'", r"/modes/webhook/replicas': got string, want integer"),
    ("webhook.port: 443", r"/webhook/port': minimum: got 443, want 1,024"),
    ("webhook.port: https", r"/webhook/port': got string, want integer"),
    ("webhook.failurePolicy: ignore", r"/webhook/failurePolicy': value must be one of 'Ignore', 'Fail'"),
    ("webhook.timeoutSeconds: 31", r"/webhook/timeoutSeconds': maximum: got 31, want 30"),
    ("webhook.excludeNamespaces: team", r"/webhook/excludeNamespaces': got string, want array"),
    ("webhook.matchConditions: [{name: a}]", r"/webhook/matchConditions/0': missing property 'expression'"),
    ("podAnnotations: {a: true}", r"/podAnnotations/a': got boolean, want string"),
    ("image: app:1", r"/image': got string, want object"),
    ("image.architectures: [x86_64]", r"/image/architectures/0': value must be one of 'amd64', 'arm64'"),
    ("image.architectures: []", r"/image/architectures': minItems: got 0, want 1"),
    ("image.pullPolicy: Sometimes", r"/image/pullPolicy': value must be one of 'Always', 'IfNotPresent', 'Never'"),
    ("image.tag: 1.2", r"/image/tag': got number, want string"),
    ("certificates.source: vault", r"/certificates/source': value must be one of 'selfManaged', 'certManager', 'ex"),
    ("store.kind: sqlite", r"/store/kind': value must be one of 'local', 'memory', 'redis'"),
    ("gates.releaseOnly: 1", r"/gates/releaseOnly': got number, want boolean"),
    (
        "config: {admission: {node_affinity: hard}}",
        r"/config/admission/node_affinity': value must be one of 'both', 'none'",
    ),
    ("config: {admission: {wait: 1}}", r"/config/admission': additional properties 'wait' not allowed"),
    ("config: {scheduler: {wait_seconds: -1}}", r"/config/scheduler/wait_seconds': minimum: got -1, want 0"),
    ("config: {scheduler: {pending: maybe}}", r"/config/scheduler/pending': value must be one of"),
    (
        "config: {placement: {preference: {arm64: 11}}}",
        r"/config/placement/preference/arm64': maximum: got 11, want 10",
    ),
    ("config: {registry: {clouds: [aws]}}", r"/config/registry/clouds/0': value must be one of"),
    ("modes.webhook.config: {log: {level: loud}}", r"/modes/webhook/config/log/level': value must be one of"),
    (
        "modes.secondScheduler.schedulerName: My_Scheduler",
        r"/modes/secondScheduler/schedulerName': 'My_Scheduler' does",
    ),
    ("commonLabels: [a]", r"/commonLabels': got array, want object"),
    ("networkPolicy.egress.apiServerPort: 70000", r"/networkPolicy/egress/apiServerPort': maximum: got 70,000"),
    ("priorityClass: system-node-critical", r"/priorityClass': got string, want object"),
    ("extraEnv: [{value: a}]", r"/extraEnv/0': missing property 'name'"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[row[0] for row in REFUSED])
def test_a_wrong_value_is_refused_with_its_path_and_what_would_be_right(helm: Path, text: str, message: str) -> None:
    """By the schema: no template has to be understood to know what was wrong."""
    with pytest.raises(RenderingRefused, match=message):
        render(values(text))


CONTRADICTIONS: list[tuple[str, str, str]] = [
    ("webhook", "modes.webhook.enabled: false", "modes: nothing would run. Set one of modes.webhook.enabled"),
    (
        "policy",
        "config: {admission: {unknown: pass}}",
        "config.admission.unknown (for modes.policy): with modes.policy every pod is held until its images are known",
    ),
    (
        "policy-and-webhook",
        "modes.webhook.config: {admission: {unknown: assume}}",
        "config.admission.unknown (for modes.webhook): with modes.policy every pod is held until its images are known",
    ),
    (
        "policy-and-webhook",
        "modes.policy.config: {log: {level: debug}}",
        "modes.policy.config: the pods of modes.webhook let held pods go",
    ),
    (
        "policy-and-webhook",
        "modes.policy.name: mine",
        "modes.policy.name: the pods of modes.webhook let held pods go",
    ),
    ("webhook", "webhook.hostNetwork: true", "webhook.hostNetwork: port 10250 of a node is its kubelet's. Choose"),
    ("webhook", "webhook.port: 8881", "webhook.port: 8881 is taken in our pods"),
    ("second", "{webhook.hostNetwork: true, webhook.port: 9443}", "webhook.hostNetwork: kube-scheduler's port 10259"),
    (
        "all",
        "{webhook.hostNetwork: true, webhook.port: 9443, modes.secondScheduler.enabled: false}",
        "webhook.hostNetwork: ports 8880 and 8881 of control-plane nodes",
    ),
    (
        "webhook",
        "config: {admission: {self_managed: {secret: a}}}",
        "config.admission.self_managed.secret (for modes.webhook): the chart decides it",
    ),
    (
        "webhook",
        "{certificates.source: certManager, config: {admission: {self_managed: {certificate_days: 1}}}}",
        "config.admission.self_managed (for modes.webhook): the chart decides it",
    ),
    ("default", "webhook.clientCaSecret: c", "webhook.clientCaSecret: no webhook is on"),
    ("all", "webhook.url: https://a", "webhook.url: two webhooks are on"),
    ("webhook", "webhook.url: http://a", 'webhook.url: "http://a" is not https://host'),
    ("webhook", "webhook.url: https://a/path", 'webhook.url: "https://a/path" is not https://host'),
    ("webhook", "image.digest: sha256:abc", 'image.digest: "sha256:abc" is no digest'),
    ("webhook", "networkPolicy.ingress.enabled: true", "networkPolicy.ingress.apiServer: name the addresses"),
    (
        "webhook",
        "networkPolicy.egress.enabled: true",
        "networkPolicy.egress.apiServer: name the API server's addresses",
    ),
    (
        "webhook",
        "{networkPolicy.ingress.enabled: true, networkPolicy.ingress.apiServer: [10.0.0.1]}",
        'networkPolicy.ingress.apiServer: "10.0.0.1" is no CIDR',
    ),
    (
        "webhook",
        (
            "{networkPolicy.ingress.enabled: true, networkPolicy.ingress.apiServer: [10.0.0.1/32], "
            "webhook.hostNetwork: true, webhook.port: 9443}"
        ),
        "networkPolicy.ingress: a policy does not bind pods on the host's network",
    ),
    (
        "default",
        "{networkPolicy.egress.enabled: true, networkPolicy.egress.apiServer: [10.0.0.1/32]}",
        "networkPolicy: the pods of modes.defaultScheduler are on the host's network",
    ),
    ("webhook", "certificates.caBundle: abc", "certificates.caBundle: with certificates.source selfManaged"),
    ("webhook", "{certificates.source: existingSecret, certificates.caBundle: abc}", "certificates.caBundle: not PEM"),
    (
        "webhook",
        "certificates.certManager.issuerRef.name: a",
        "certificates.certManager.issuerRef.name: certificates.source is selfManaged",
    ),
    ("webhook", "store.kind: redis", "store.redis.address: with store.kind redis say where it is"),
    ("webhook", "store.redis.address: a", "store.redis.address: store.kind is local"),
    (
        "webhook",
        "{store.kind: redis, store.redis.address: a, store.redis.tls: false, store.redis.caSecret: b}",
        "store.redis.caSecret: authorities are for TLS",
    ),
    (
        "webhook",
        "config: {admission: {wait_seconds: 3}}",
        "webhook.timeoutSeconds: 3 s is not more than config.admission.wait_seconds",
    ),
    (
        "webhook",
        "config: {admission: {listen: ':1'}}",
        "config.admission.listen (for modes.webhook): the chart decides it. Use webhook.port",
    ),
    (
        "webhook",
        "modes.webhook.config: {cache: {url: 'memory:'}}",
        "config.cache.url (for modes.webhook): the chart decides it. Use store.kind",
    ),
    ("webhook", "config: {cluster: none}", "config.cluster (for modes.webhook): the chart decides it"),
    (
        "webhook",
        "config: {admission: {guard_daemon_sets: true}}",
        "config.admission.guard_daemon_sets (for modes.webhook): the chart decides it. Use modes.webhook.workloads.",
    ),
    (
        "second",
        "{modes.secondScheduler.webhook: false, modes.secondScheduler.outage.namedBy: webhook}",
        "modes.secondScheduler.outage.namedBy: webhook needs the listener of modes.secondScheduler.webhook",
    ),
    (
        "second",
        "config: {admission: {scheduler_name: a}}",
        "config.admission.scheduler_name (for modes.secondScheduler): the chart decides it",
    ),
    (
        "default",
        "config: {scheduler: {pending: retry}}",
        "config.scheduler.pending: retry protects nobody in modes.defaultScheduler",
    ),
    (
        "default",
        "config: {scheduler: {unknown: retry}}",
        "config.scheduler.unknown: retry protects nobody in modes.defaultScheduler",
    ),
    (
        "second",
        "modes.secondScheduler.schedulerName: default-scheduler",
        "modes.secondScheduler.schedulerName: default-scheduler is the cluster's own",
    ),
    (
        "all",
        "{modes.webhook.name: a, modes.secondScheduler.name: a}",
        'modes.webhook.name: "a" is the name of modes.secondScheduler too',
    ),
    (
        "webhook",
        "config: {admission: {canary_namespace: a}}",
        "config.admission.canary_namespace (for modes.webhook): the chart decides it",
    ),
    (
        "webhook",
        (
            "modes.webhook.namespaceSelector.matchExpressions: "
            "[{key: kubernetes.io/metadata.name, operator: In, values: [team]}]"
        ),
        "modes.webhook.namespaceSelector: it selects namespaces by name, and not multiarch-extender-webhook-canary",
    ),
    (
        "policy",
        (
            "modes.policy.namespaceSelector.matchExpressions: "
            "[{key: kubernetes.io/metadata.name, operator: In, values: [team]}]"
        ),
        (
            "modes.policy.namespaceSelector: it selects namespaces by name, and not multiarch-extender-policy-canary; "
            "in multiarch-extender-policy-canary dry runs show that the policy works. Add that name ("
            "{matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, "
            "values: [team, multiarch-extender-policy-canary]}]}), or set canary.enabled to false."
        ),
    ),
    (
        "policy-and-webhook",
        "modes.policy.namespaceSelector.matchLabels: {kubernetes.io/metadata.name: team}",
        "modes.policy.namespaceSelector: it selects namespaces by name, and not multiarch-extender-webhook-canary",
    ),
    (
        "policy-and-webhook",
        "{modes.policy.namespaceSelector.matchLabels: {a: b}, modes.webhook.namespaceSelector.matchLabels: {a: c}}",
        "namespaceSelector: it asks for a In [",
    ),
    *(
        (
            "policy",
            f"modes.policy.namespaceSelector.matchExpressions: [{expression}]",
            f"modes.policy.namespaceSelector: it asks for {said}, which no label of the chart can meet",
        )
        for expression, said in (
            ("{key: a, operator: Exists}, {key: a, operator: DoesNotExist}", "a Exists []"),
            ("{key: a, operator: In, values: [b]}, {key: a, operator: NotIn, values: [b]}", "a In [b]"),
            ("{key: app.kubernetes.io/name, operator: DoesNotExist}", "app.kubernetes.io/name DoesNotExist []"),
            (
                "{key: pod-security.kubernetes.io/enforce, operator: In, values: [privileged]}",
                "pod-security.kubernetes.io/enforce In [privileged]",
            ),
            (
                "{key: kubernetes.io/metadata.name, operator: NotIn, values: [multiarch-extender-policy-canary]}",
                "kubernetes.io/metadata.name NotIn [multiarch-extender-policy-canary]",
            ),
        )
    ),
    (
        "webhook",
        "{image.registry: '', image.name: multiarch-extender}",
        "image.registry: no public registry has the service's image. Build it (docs/how-to/build-the-image.md)",
    ),
    *(
        ("webhook", f"{path}: {{{key}: mine}}", f"{path}: the chart decides {key}, by which it finds its pods")
        for path, key in (
            ("commonLabels", "app.kubernetes.io/name"),
            ("commonLabels", "pod-security.kubernetes.io/enforce"),
            ("podLabels", "app.kubernetes.io/instance"),
            ("podLabels", "app.kubernetes.io/component"),
            ("podAnnotations", "checksum/configuration"),
        )
    ),
    *(
        (
            "webhook",
            f"{{networkPolicy.egress: {{enabled: true, apiServer: [10.0.0.1/32]{more}}}, {text}}}",
            f"networkPolicy.egress: it would keep our pods from {said}",
        )
        for text, said, more in (
            (
                "store: {kind: redis, redis: {address: 'redis.example.com:6380'}}",
                "redis.example.com on port 6380 (store.redis.address). Add a rule",
                ", more: [{ports: [{protocol: TCP, port: 6379}]}]",
            ),
            ("store: {kind: redis, redis: {address: redis.store.svc}}", "redis.store.svc on port 6379", ""),
            (
                "extraEnv: [{name: HTTPS_PROXY, value: 'http://me:secret@proxy.example.com:3128/'}]",
                "proxy.example.com on port 3128 (extraEnv, HTTPS_PROXY)",
                "",
            ),
            (
                "registries.hosts: {docker.io: 'server = \"https://10.1.2.3/v2\"'}",
                "10.1.2.3 on port 443 (registries.hosts)",
                "",
            ),
            ("registries.hosts: {'r.example.com:5000': ''}", "r.example.com on port 5000 (registries.hosts)", ""),
            ("config: {registry: {plain_http: [r.example.com]}}", "r.example.com on port 80", ""),
            ("config: {registry: {clouds: [gcp]}}", "the cloud's metadata service, such as 169.254.169.254,", ""),
            ("config: {registry: {clouds: [ecr]}}", "the cloud's metadata service, such as 169.254.169.254,", ""),
        )
    ),
    (
        "webhook",
        "{dnsPolicy: Default, store: {kind: redis, redis: {address: redis.store.svc}}}",
        "dnsPolicy: with Default our pods ask the node's name service, which does not know redis.store.svc",
    ),
    (
        "webhook",
        "webhook.excludeNamespaces: [multiarch-extender-webhook-canary]",
        "webhook.excludeNamespaces: in multiarch-extender-webhook-canary dry runs show",
    ),
]


@pytest.mark.parametrize(("mode", "text", "message"), CONTRADICTIONS, ids=[row[2][:48] for row in CONTRADICTIONS])
def test_values_that_contradict_each_other_are_refused_in_one_sentence(
    helm: Path, mode: str, text: str, message: str
) -> None:
    """It names the value, why it cannot be, and what would be right."""
    with pytest.raises(RenderingRefused, match=re.escape(message)):
        rendered(text, mode)


@pytest.mark.parametrize("version", ["v1.35.2-eks-1a2b3c", "v1.35.2-gke.100"])
def test_a_vendors_control_plane_has_no_default_scheduler_of_ours(helm: Path, version: str) -> None:
    """Nobody could tell its kube-scheduler."""
    with pytest.raises(RenderingRefused, match="whose kube-scheduler takes no configuration of yours"):
        render(MODES["default"], kubernetes=version)


@pytest.mark.parametrize("mode", ["policy", "policy-and-webhook"])
@pytest.mark.parametrize("version", ["v1.30.4", "v1.35.2-gke.100"])
def test_a_cluster_without_mutating_policies_has_no_policy_mode(helm: Path, version: str, mode: str) -> None:
    """The message names the version that has them, and what to use instead."""
    with pytest.raises(RenderingRefused, match=re.escape(f"this cluster ({version}) does not serve Mutating")):
        render(MODES[mode], kubernetes=version)


def test_a_cluster_without_mutating_policies_names_no_scheduler_by_one(helm: Path) -> None:
    """The message says what to use instead."""
    given = merged(MODES["second"], values("modes.secondScheduler.outage.namedBy: policy"))
    with pytest.raises(RenderingRefused, match=r"has from 1\.36 on\. Use webhook in place of policy"):
        render(given, kubernetes="v1.35.2")


def test_kubernetes_before_1_30_is_refused(helm: Path) -> None:
    """Match conditions of webhooks are stable from 1.30 on."""
    with pytest.raises(RenderingRefused, match=r"requires kubeVersion: >=1\.30\.0-0"):
        render(kubernetes="v1.29.9")


# --- what is said after the installation


def notes(helm: Path, *arguments: str) -> str:
    """NOTES.txt, without a cluster."""
    command = [str(helm), "install", "multiarch-extender", str(CHART), "--namespace=multiarch-extender"]
    done = subprocess.run(
        [*command, "--dry-run=client", "--set=image.registry=r", *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.partition("NOTES:\n")[2]


def test_the_notes_say_what_to_try(helm: Path) -> None:
    """A pod as dry run, and the doctor."""
    said = notes(helm)
    assert "kubectl run try --image=debian:12 --dry-run=server -o yaml | grep -A 12 tolerations" in said
    assert "helm test multiarch-extender --namespace multiarch-extender" in said
    assert "multiarch-extender doctor" in notes(helm, "--set=doctor.test=false")


def test_the_notes_name_the_secret_and_the_authority_that_are_yours_to_make(helm: Path) -> None:
    """With certificates.source existingSecret."""
    said = notes(helm, "--set=certificates.source=existingSecret")
    assert "- The Secret multiarch-extender-webhook-tls (tls.crt, tls.key)" in said
    assert "caBundle of the MutatingWebhookConfiguration multiarch-extender-webhook" in said


def test_the_notes_say_how_to_let_held_pods_go_without_the_image(helm: Path) -> None:
    """Where pods may be held."""
    without_hooks = "helm uninstall multiarch-extender --namespace multiarch-extender --no-hooks"
    assert without_hooks in notes(helm, "--set=config.admission.unknown=gate")
    assert without_hooks in notes(helm, "--set=modes.policy.enabled=true")
    assert without_hooks not in notes(helm)


def test_the_notes_say_when_nothing_is_missing(helm: Path) -> None:
    """An image is all it takes."""
    assert "Still missing: nothing that the chart knows of." in notes(helm)


def test_manifests_keep_the_comments_of_their_templates() -> None:
    """A reader of the files finds the reasons in them."""
    said = {
        "webhook": ["# An outage does not keep pods from being created.", "For namespaces that opt in instead"],
        "second-scheduler": ["# The built-in roles and not copies of them", "# Leave it out before 1.33"],
        "default-scheduler": ["# Wherever kube-scheduler runs", "# An image not known yet is taken to run on `assume`"],
        "network-policy": ["# Teredo and 6to4", "# The API server's addresses and port as"],
    }
    for name, comments in said.items():
        text = (HELM_FOLDER.parent / "manifests" / f"{name}.yaml").read_text()
        assert all(" ".join(each.split()) in " ".join(text.split()) for each in comments), name


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "certificates.source: selfManaged",
        "config.admission.unknown: gate",
        "config.registry.mirrors: openshift",
        "config.drift: {events: true}",
        "config.registry.pull_secrets: [a, b]",
        "config.registry.pull_secrets: true",
        "canary.enabled: false",
    ],
)
def test_every_right_that_the_settings_take_is_given(helm: Path, mode: str, text: str) -> None:
    """By the table that the service goes by, and of which `doctor` asks."""
    objects = rendered(text, mode)
    files = [each for each in objects if each["kind"] == "ConfigMap" and "config.yaml" in each["data"]]
    for each in files:  # each part's is named as its account
        name, namespace = each["metadata"]["name"], each["metadata"]["namespace"]
        given = rights_given(objects, name)
        wanted = rights_of(parse_config(each["data"]["config.yaml"], ""), namespace)
        assert [right for right in wanted if not is_given(right, given)] == []
    assert files
