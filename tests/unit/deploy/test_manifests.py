"""The files in deploy agree with the service, with each other and with the release, as far as reading them can tell."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import extender
from extender.cluster import views
from extender.cluster.gated_pods import GATED_PODS
from extender.cluster.listwatch import Resource
from extender.cluster.openshift_objects import RESOURCES
from extender.config.checks import parse_listen
from extender.config.reading import load_config, read_config
from extender.config.tree import Config, GateConfig
from extender.kubernetes.authorization_v1 import ResourceAttributes
from extender.service.rights import GATE_RIGHTS, rights_of
from tests.unit.deploy.roles import rights_in

Document = dict[str, Any]

PROJECT = Path(__file__).parents[3]
DEPLOY = PROJECT / "deploy"
MODES = ("second-scheduler", "default-scheduler", "webhook", "policy")
WITH_WEBHOOK = ("second-scheduler", "webhook")
IMAGE = f"registry.example.com/multiarch-extender:{extender.__version__}"
ON_CONTROL_PLANE = "/etc/kubernetes/multiarch-extender"


def load(file: str) -> list[Document]:
    """The documents of a file in deploy."""
    return list(yaml.safe_load_all((DEPLOY / file).read_text()))


def of_mode(mode: str, kind: str) -> Document:
    """The only document of that kind among a mode's manifests, but for those that let held pods go."""
    found = [document for document in load(f"manifests/{mode}.yaml") if document["kind"] == kind]
    (found_one,) = (document for document in found if not document["metadata"]["name"].endswith("-gates"))
    return found_one


def workload_of(mode: str) -> Document:
    """The Deployment or DaemonSet."""
    return of_mode(mode, "DaemonSet" if mode == "default-scheduler" else "Deployment")


def service_container(mode: str) -> Document:
    """The container that runs our image."""
    spec = workload_of(mode)["spec"]["template"]["spec"]
    containers: list[Document] = spec.get("initContainers", []) + spec["containers"]
    (found,) = (container for container in containers if container["name"] == "multiarch-extender")
    return found


def config_of(mode: str, folder: Path) -> Config:
    """The settings with which a mode's service runs."""
    file = folder / "config.yaml"
    file.write_text(of_mode(mode, "ConfigMap")["data"]["config.yaml"])
    return load_config(str(file))


@pytest.mark.parametrize(
    ("mode", "pending", "scheduler", "admission", "node_affinity", "scheduler_name"),
    [
        ("second-scheduler", "retry", "127.0.0.1:8880", ":10250", "required", "multiarch-scheduler"),
        ("default-scheduler", "assume", "127.0.0.1:8880", "", "required", ""),
        ("webhook", "retry", "", ":10250", "required", ""),
        ("policy", "retry", "", "", "required", ""),
    ],
    ids=MODES,
)
def test_each_modes_configuration_is_accepted_and_says_what_the_mode_needs(
    tmp_path: Path, mode: str, pending: str, scheduler: str, admission: str, node_affinity: str, scheduler_name: str
) -> None:
    """The service starts on the text in the ConfigMap, in the cluster it runs in."""
    config = config_of(mode, tmp_path)
    assert config.cluster == "auto"
    assert (config.scheduler.listen, config.scheduler.pending) == (scheduler, pending)
    assert (config.admission.listen, config.admission.scheduler_name) == (admission, scheduler_name)
    assert config.admission.node_affinity == node_affinity


@pytest.mark.parametrize("mode", MODES)
def test_the_container_finds_its_configuration_and_its_ports_where_the_settings_say(tmp_path: Path, mode: str) -> None:
    """Mounts, arguments, declared ports and probes name the same paths and ports as the configuration."""
    config, container = config_of(mode, tmp_path), service_container(mode)
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert container["args"] == ["serve", f"--config={mounts['configuration']}/config.yaml"]
    assert ports.pop("operations") == parse_listen(config.operations.listen)[1]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == "operations"
    if config.admission.listen:
        assert ports.pop("webhook") == parse_listen(config.admission.listen)[1]
        assert config.admission.tls is not None
        assert config.admission.tls.certificate == f"{mounts['certificate']}/tls.crt"
        assert config.admission.tls.key == f"{mounts['certificate']}/tls.key"
    if "scheduler" in ports:  # on the host's network, where the scheduler of pods must know that it is taken
        assert ports.pop("scheduler") == parse_listen(config.scheduler.listen)[1]
    assert ports == {}


@pytest.mark.parametrize("mode", MODES)
def test_a_pod_is_given_longer_to_end_than_the_service_takes(tmp_path: Path, mode: str) -> None:
    """Else the kubelet would kill it amid the requests it is finishing."""
    grace = workload_of(mode)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > config_of(mode, tmp_path).shutdown.grace_seconds


@pytest.mark.parametrize("mode", WITH_WEBHOOK)
def test_the_webhook_is_called_where_the_service_answers_and_waits_longer_than_it_does(
    tmp_path: Path, mode: str
) -> None:
    """Path and port lead to the listener, and the service's own deadline comes first."""
    webhook, *_ = of_mode(mode, "MutatingWebhookConfiguration")["webhooks"]
    service, target = of_mode(mode, "Service"), webhook["clientConfig"]["service"]
    assert (target["name"], target["namespace"]) == (service["metadata"]["name"], service["metadata"]["namespace"])
    assert service["spec"]["ports"] == [{"name": "webhook", "port": target["port"], "targetPort": "webhook"}]
    assert target["path"] == "/admission/pods"
    assert config_of(mode, tmp_path).admission.wait_seconds < webhook["timeoutSeconds"]


@pytest.mark.parametrize("mode", MODES)
def test_everything_that_selects_the_pods_selects_them(mode: str) -> None:
    """The labels of the template are those that the workload, the budget, the Service and the spreading look for."""
    template = workload_of(mode)["spec"]["template"]
    selectors = [workload_of(mode)["spec"]["selector"]["matchLabels"]]
    selectors += [
        spread["labelSelector"]["matchLabels"] for spread in template["spec"].get("topologySpreadConstraints", [])
    ]
    if mode != "default-scheduler":
        (apart,) = template["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        selectors.append(apart["podAffinityTerm"]["labelSelector"]["matchLabels"])
        selectors.append(of_mode(mode, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"])
    if mode in WITH_WEBHOOK:
        selectors.append(of_mode(mode, "Service")["spec"]["selector"])
    (egress,) = load("manifests/network-policy.yaml")
    assert all(selector == template["metadata"]["labels"] for selector in selectors)
    assert egress["spec"]["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()


@pytest.mark.parametrize("mode", MODES)
def test_the_roles_give_what_the_settings_take_and_no_more(tmp_path: Path, mode: str) -> None:
    """But for kube-scheduler's own Lease."""
    account = of_mode(mode, "ServiceAccount")["metadata"]
    roles = [each for each in load(f"manifests/{mode}.yaml") if each["kind"] in ("Role", "ClusterRole")]
    own = [each for each in roles if not each["metadata"]["name"].endswith("-leader")]
    given = [rights_in(each["rules"], each["metadata"].get("namespace", "")) for each in own]
    assert set().union(*given) == set(rights_of(config_of(mode, tmp_path), account["namespace"]))


def test_every_watch_is_among_the_rights() -> None:
    """Of all that is listed and watched, with settings that have everything on."""
    text = ["registry.mirrors=openshift", "admission.unknown=gate", "scheduler.listen=':1'"]
    rights = set(rights_of(read_config(None, text), "ours"))
    declared = [each for each in vars(views).values() if isinstance(each, Resource)]
    for each in (*declared, GATED_PODS, *RESOURCES):
        resource, _, group = each.granted_as.partition(".")
        assert {ResourceAttributes(verb, resource, group) for verb in ("list", "watch")} <= rights


def test_roles_for_gates_are_what_the_controller_does_and_no_more(tmp_path: Path) -> None:
    """It lists, watches, reads and patches pods, tells of them in events, leads by one lease, and binds the policy."""
    found = [
        each for each in load("manifests/policy.yaml") if each["metadata"]["name"].endswith(("-gates", "-held-pods"))
    ]
    documents = {document["kind"]: document for document in found}
    pods, events, *policies = documents["ClusterRole"]["rules"]
    assert (pods["resources"], set(pods["verbs"])) == (["pods"], {right.verb for right in GATE_RIGHTS})
    assert (events["resources"], events["verbs"]) == (["events"], ["create"])
    assert {each for rule in policies for each in rule["resources"]} == {
        "mutatingadmissionpolicies",
        "mutatingadmissionpolicybindings",
    }
    (named,) = documents["Role"]["rules"]
    lease = documents["Lease"]["metadata"]["name"]
    assert (set(named["verbs"]), named["resourceNames"]) == ({"get", "patch"}, [lease])
    gate = config_of("policy", tmp_path).admission.gate
    assert (gate.lease, GateConfig().lease) == (lease, lease)
    assert of_mode("policy", "MutatingAdmissionPolicy")["metadata"]["name"] == gate.policy
    account = of_mode("policy", "ServiceAccount")["metadata"]
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        [subject] = documents[kind]["subjects"]
        assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])
