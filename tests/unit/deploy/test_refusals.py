"""Values of the chart that are refused, and in which words: by the schema, or where two do not go together."""

import re

import pytest

from testbed.chart import RenderingRefused, render
from tests.unit.deploy.renderings import MODES, rendered, values

pytestmark = pytest.mark.usefixtures("helm")

OF_THE_SCHEMA: list[tuple[str, str]] = [
    ("modes.webhook.enabled: 'yes'", r"/modes/webhook/enabled': got string, want boolean"),
    ("modes.webhok.enabled: true", r"/modes': additional properties 'webhok' not allowed"),
    ("modes.webhook.replicas: 3", r"/modes/webhook': additional properties 'replicas' not allowed"),
    ("overrides.webhook.podLabel: {}", r"/overrides/webhook': additional properties 'podLabel' not allowed"),
    ("overrides.policy.replicas: 0", r"/overrides/policy/replicas': minimum: got 0, want 1"),
    ("probes.liveness.httpGet: {}", r"/probes/liveness': additional properties 'httpGet' not allowed"),
    ("service.ipFamilies: [IPv5]", r"/service/ipFamilies/0': value must be one of 'IPv4', 'IPv6'"),
    ("affinity.nodAffinity: {}", r"/affinity': additional properties 'nodAffinity' not allowed"),
    ("global: a", r"/global': got string, want object"),
    ("replicas: 0", r"/replicas': minimum: got 0, want 1"),
    ("modes.secondScheduler.namingPolicy: both", r"/namingPolicy': got string, want boolean"),
    ("modes.webhook.workloads: jobs", r"/modes/webhook/workloads': value must be one of 'off', 'warn', 'guard', false"),
    ("modes.secondScheduler.schedulerName: My_Scheduler", r"/schedulerName': 'My_Scheduler' does not match pattern"),
    ("webhook.port: 443", r"/webhook/port': minimum: got 443, want 1,024"),
    ("webhook.url: http://a", r"/webhook/url': 'http://a' does not match pattern"),
    ("webhook.matchConditions: [{name: a}]", r"/webhook/matchConditions/0': missing property 'expression'"),
    ("image.digest: sha256:abc", r"/image/digest': 'sha256:abc' does not match pattern"),
    ("image.architectures: [x86_64]", r"/image/architectures/0': value must be one of 'amd64', 'arm64'"),
    ("certificates.caBundle: abc", r"/certificates/caBundle': 'abc' does not match pattern"),
    ("networkPolicy.ingress.apiServer: [10.0.0.1]", r"/apiServer/0': '10.0.0.1' does not match pattern"),
    ("config.admission.wait: 1", r"/config/admission': additional properties 'wait' not allowed"),
    ("config.placement.preference.arm64: 11", r"/config/placement/preference/arm64': maximum: got 11, want"),
    (
        "config.placement.preference.arm46: 10",
        r"/config/placement/preference': additional properties 'arm46' not allowed",
    ),
    ("config.scheduler.assume: [linux/amd46]", r"/config/scheduler/assume/0': 'linux/amd46' does not match pattern"),
    ("config.placement.runtime_classes.kata: [linuks/arm64]", r"/runtime_classes/kata/0': 'linuks/arm64' does not"),
    ("config.admission.tolerations: [{platforms: [arm64]}]", r"/tolerations/0/platforms/0': 'arm64' does not match"),
    ("config.registry.clouds: [awss]", r"/config/registry/clouds/0': value must be one of"),
    ("config.placement.compatibility: [arm-on-amd64]", r"/placement/compatibility/0': value must be one of"),
]
PORT = "webhook.hostNetwork: true, webhook.port: 9443"
SECOND = "modes.secondScheduler"
INGRESS = "networkPolicy.ingress"
OF_TWO: list[tuple[str, str, str]] = [
    ("webhook", "modes.webhook: {enabled: false}", "modes: nothing would run. Set one of modes.webhook.enabled"),
    ("webhook", "image.repository: ''", "image.repository: no public registry has the service's image. Build it"),
    ("policy", "config: {admission: {unknown: pass}}", "config.admission.unknown: with modes.policy every pod is held"),
    ("second", f"{SECOND}: {{schedulerName: default-scheduler}}", "schedulerName: default-scheduler is the cluster"),
    ("second", "config: {admission: {scheduler_name: a}}", "config.admission.scheduler_name: the chart decides it"),
    ("default", "config: {scheduler: {pending: retry}}", "config.scheduler: retry protects nobody"),
    ("default", "config: {scheduler: {unknown: retry}}", "config.scheduler: retry protects nobody"),
    ("webhook", "webhook.hostNetwork: true", "webhook.hostNetwork: port 10250 of a node is its kubelet's. Choose"),
    ("webhook", "webhook.port: 8881", "webhook.port: 8881 is taken in our pods"),
    ("second", f"{{{PORT}}}", "webhook.hostNetwork: kube-scheduler's port 10259"),
    ("default", f"{{{PORT}}}", "webhook.hostNetwork: ports 8880 and 8881 of control-plane nodes"),
    ("default", "webhook.clientCaSecret: c", "webhook.clientCaSecret: no webhook is on"),
    ("all", "webhook.url: https://a", "webhook.url: two webhooks are on"),
    ("webhook", "config: {admission: {wait_seconds: 3}}", "webhook.timeoutSeconds: 3 s is not more than config.adm"),
    ("webhook", "certificates.caBundle: -----BEGIN CERTIFICATE-----", "caBundle: with certificates.source"),
    ("webhook", "certificates.certManager.issuerRef.name: a", "issuerRef.name: certificates.source is selfManaged"),
    ("webhook", f"{INGRESS}.enabled: true", f"{INGRESS}.apiServer: name the addresses"),
    (
        "webhook",
        f"{{{INGRESS}: {{enabled: true, apiServer: [10.0.0.1/32]}}, {PORT}}}",
        f"{INGRESS}: no policy binds pods",
    ),
    ("default", f"{INGRESS}.enabled: true", f"{INGRESS}: no policy binds pods on the host's network"),
    *(
        ("webhook", f"{labels}: {{{key}: mine}}", f"{labels}: the chart decides {key}")
        for labels, key in (
            ("commonLabels", "app.kubernetes.io/name"),
            ("commonLabels", "helm.sh/chart"),
            ("podLabels", "app.kubernetes.io/component"),
            ("podAnnotations", "checksum/configuration"),
        )
    ),
    ("webhook", "overrides.webhook.podAnnotations: {checksum/configuration: a}", "podAnnotations: the chart decides"),
    ("all", "serviceAccount.name: a", "serviceAccount.name: two parts would have the account a, and each the rights"),
    ("policy", "webhook.excludeNamespaces: [default]", "probeNamespace: the policy comes into force once"),
    ("webhook", "probeNamespace: kube-system", "probeNamespace: the pods of kube-system are never touched"),
    ("policy", "namespaceSelector: {matchLabels: {a: b}}", "probeNamespace: the policy comes into force once"),
    (
        "webhook",
        "config.admission.gate.probe_namespace: a",
        "config.admission.gate.probe_namespace: the chart decides it",
    ),
    *(
        (
            "webhook",
            f"{{config: {config}, registries.hosts: {{docker.io: ''}}}}",
            f"config.{path}: the chart decides it",
        )
        for path, config in (
            ("admission.listen", "{admission: {listen: ':1'}}"),
            ("admission.guard_daemon_sets", "{admission: {guard_daemon_sets: true}}"),
            ("admission.gate.lease", "{admission: {gate: {lease: a}}}"),
            ("operations.listen", "{operations: {listen: ':1'}}"),
            ("cluster", "{cluster: none}"),
            ("registry.mirrors", "{registry: {mirrors: /m}}"),
        )
    ),
]
OF_VERSIONS: list[tuple[str, str, str, str]] = [
    ("default", "", "v1.35.2-eks-1a2b3c", "whose kube-scheduler takes no configuration of yours"),
    ("default", "", "v1.35.2-gke.100", "whose kube-scheduler takes no configuration of yours"),
    ("policy", "", "v1.35.2-gke.100", "this cluster (v1.35.2-gke.100) does not serve MutatingAdmissionPolicy"),
    ("policy-and-webhook", "", "v1.34.4", "this cluster (v1.34.4) does not serve MutatingAdmissionPolicy"),
    (
        "second",
        "modes.secondScheduler: {namingPolicy: true}",
        "v1.35.2",
        "namingPolicy: this cluster (v1.35.2) does not",
    ),
    ("webhook", "", "v1.33.9", "requires kubeVersion: >=1.34.0-0"),
]


def test_wrong_values_are_refused_with_their_paths_and_what_would_be_right() -> None:
    """By the schema, all at once: no template has to be understood to know what was wrong."""
    with pytest.raises(RenderingRefused) as refused:
        render(values("{" + ", ".join(text for text, _ in OF_THE_SCHEMA) + "}"))
    for _, message in OF_THE_SCHEMA:
        assert re.search(message, str(refused.value)), message


@pytest.mark.parametrize(("mode", "text", "message"), OF_TWO, ids=[row[2][:48] for row in OF_TWO])
def test_values_that_contradict_each_other_are_refused_in_one_sentence(mode: str, text: str, message: str) -> None:
    """It names the value, why it cannot be, and what would be right."""
    with pytest.raises(RenderingRefused, match=re.escape(message)):
        rendered(text, mode)


@pytest.mark.parametrize(("mode", "text", "version", "message"), OF_VERSIONS)
def test_what_a_cluster_cannot_do_is_refused_by_its_version(mode: str, text: str, version: str, message: str) -> None:
    """The message says what to use instead."""
    made = values(text).get("modes", {})
    modes = {name: {**each, **made.get(name, {})} for name, each in MODES[mode].items()}
    with pytest.raises(RenderingRefused, match=re.escape(message)):
        render({"modes": modes}, kubernetes=version)
