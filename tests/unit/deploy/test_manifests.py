"""The files in deploy agree with the service, with each other and with the release, as far as reading them can tell."""

import ipaddress
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

import extender
from extender.cluster.views import NAMESPACES, NODES
from extender.config.checks import parse_listen
from extender.config.reading import load_config
from extender.config.tree import Config
from extender.service.gate_opening import WANTED
from testbed.binaries import NEWEST
from testbed.shipped_files import Mode, gate_manifests, service_configuration

Document = dict[str, Any]

PROJECT = Path(__file__).parents[3]
DEPLOY = PROJECT / "deploy"
MODES = ("second-scheduler", "default-scheduler", "webhook")
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
        ("default-scheduler", "assume", "127.0.0.1:8880", "", "none", ""),
        ("webhook", "retry", "", ":10250", "required", ""),
    ],
    ids=MODES,
)
def test_each_modes_configuration_is_accepted_and_says_what_the_mode_needs(
    tmp_path: Path, mode: str, pending: str, scheduler: str, admission: str, node_affinity: str, scheduler_name: str
) -> None:
    """The service starts on the text in the ConfigMap, in the cluster it runs in."""
    config = config_of(mode, tmp_path)
    assert config.cluster.mode == "auto"
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
    if mode in WITH_WEBHOOK:
        (apart,) = template["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        selectors.append(apart["podAffinityTerm"]["labelSelector"]["matchLabels"])
        selectors.append(of_mode(mode, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"])
        selectors.append(of_mode(mode, "Service")["spec"]["selector"])
    (egress,) = load("manifests/network-policy.yaml")
    assert all(selector == template["metadata"]["labels"] for selector in selectors)
    assert egress["spec"]["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()


@pytest.mark.parametrize("mode", MODES)
def test_the_role_is_what_the_service_reads_and_no_more(mode: str) -> None:
    """One rule per resource that is watched, and `get` where one object is looked up by name."""
    used = {resource.name: {"list", "watch"} for resource in (NODES, NAMESPACES)}
    if mode != "webhook":  # where the scheduler verbs are asked
        used["pods"] = {"watch", "list"}  # PendingPods; DriftWatch, of those that use an image whose tag has moved
    used["nodes"].add("get")  # WatchedNodes.find: a node that our watch has not seen yet
    if mode in WITH_WEBHOOK:
        used["events"] = {"create"}  # DaemonPods, on DaemonSets
    used["secrets"] = {"get"}  # ClusterSecrets.read_logins: pull secrets, by the name a pod gives
    rules = of_mode(mode, "ClusterRole")["rules"]
    assert all(rule.keys() == {"apiGroups", "resources", "verbs"} and rule["apiGroups"] == [""] for rule in rules)
    assert {name: set(rule["verbs"]) for rule in rules for name in rule["resources"]} == used


def test_every_resource_that_is_read_is_in_the_test_above() -> None:
    """A file of the cluster room that declares another one makes this fail, so that the role is thought of."""
    declared = re.findall(r"^(\w+) = Resource\(", "\n".join(_sources("extender/cluster")), re.MULTILINE)
    only_openshift = ["DIGEST_MIRRORS", "DIGEST_POLICIES", "IMAGE_CONFIGURATIONS", "TAG_MIRRORS"]  # in test_chart.py
    assert sorted(declared) == sorted(["GATED_PODS", "NAMESPACES", "NODES", *only_openshift])


def test_roles_for_gates_are_what_the_controller_does_and_no_more() -> None:
    """It lists, watches, reads and patches pods, tells of them in events, and leads by one lease."""
    documents = {document["kind"]: document for document in gate_manifests()}
    cluster = {tuple(rule["resources"]): set(rule["verbs"]) for rule in documents["ClusterRole"]["rules"]}
    assert cluster == {("pods",): {right.verb for right in WANTED}, ("events",): {"create"}}
    (named,) = documents["Role"]["rules"]
    lease = documents["Lease"]["metadata"]["name"]
    assert (set(named["verbs"]), named["resourceNames"]) == ({"get", "patch"}, [lease])
    assert service_configuration(Mode.WEBHOOK)["admission"]["gate"]["lease"] == lease
    account = of_mode("webhook", "ServiceAccount")["metadata"]
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        [subject] = documents[kind]["subjects"]
        assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])


def _sources(folder: str) -> Iterator[str]:
    return (file.read_text() for file in sorted((PROJECT / folder).glob("*.py")))


def test_what_several_files_declare_is_the_same_in_each() -> None:
    """So they can be applied together and in any order."""
    seen: dict[tuple[str, str], Document] = {}
    for document in chain.from_iterable(load(f"manifests/{mode}.yaml") for mode in MODES):
        key = (document["kind"], document["metadata"]["name"])
        assert seen.setdefault(key, document) == document
    assert ("Namespace", "multiarch-extender") in seen


def test_the_second_schedulers_configuration_is_the_same_in_both_places() -> None:
    """The ConfigMap carries the commented file, without its comments."""
    carried = yaml.safe_load(of_mode("second-scheduler", "ConfigMap")["data"]["scheduler.yaml"])
    assert [carried] == load("scheduler/second-scheduler.yaml")


@pytest.mark.parametrize("mode", ["second-scheduler", "default-scheduler"])
def test_kube_scheduler_asks_where_the_service_answers(tmp_path: Path, mode: str) -> None:
    """All three verbs, at the listener's address; and the setting for pending images fits `ignorable`."""
    (scheduler,) = load(f"scheduler/{mode}.yaml")
    (extender_entry,) = scheduler["extenders"]
    config = config_of(mode, tmp_path)
    assert extender_entry["urlPrefix"] == f"http://{config.scheduler.listen}/scheduler"
    verbs = {verb: extender_entry[f"{verb}Verb"] for verb in ("filter", "prioritize", "preempt")}
    assert verbs == {verb: verb for verb in verbs}
    assert extender_entry["ignorable"] is (config.scheduler.pending != "retry")
    assert extender_entry["nodeCacheCapable"] is True


def test_one_image_of_this_release_is_named_everywhere() -> None:
    """The placeholder is documented in one place, and exchanged by one command."""
    text = "\n".join(file.read_text() for file in _all_files())
    named = set(re.findall(r"[\w.]*/multiarch-extender:[\w.-]+", text))
    assert named == {IMAGE}
    for mode in MODES:
        assert service_container(mode)["image"] == IMAGE


def _all_files() -> list[Path]:
    return [PROJECT / "Dockerfile", *(file for file in DEPLOY.rglob("*") if file.is_file() and file.suffix != ".pyc")]


def test_the_images_version_is_that_of_the_package() -> None:
    """The label's default follows the release."""
    assert f"ARG VERSION={extender.__version__}\n" in (PROJECT / "Dockerfile").read_text()


def test_the_second_scheduler_is_the_newest_release_that_the_tests_run() -> None:
    """So what the end-to-end tests say of its flags and its configuration holds for the image that is named."""
    (container,) = workload_of("second-scheduler")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.k8s.io/kube-scheduler:{NEWEST.version}"


def scheduler_arguments(configuration: Document) -> tuple[str, list[Document]]:
    """(value of --config, volumes) in kubeadm's ClusterConfiguration of either version."""
    scheduler = configuration["scheduler"]
    arguments = scheduler["extraArgs"]
    if isinstance(arguments, list):
        arguments = {each["name"]: each["value"] for each in arguments}
    assert arguments.keys() == {"config"}
    return arguments["config"], scheduler["extraVolumes"]


def test_kubeadm_kind_and_the_static_pod_name_the_same_file() -> None:
    """It is mounted into kube-scheduler from where it lies on the control-plane node."""
    (kubeadm,) = load("scheduler/kubeadm.yaml")
    (cluster,) = load("kind/cluster.yaml")
    (pod,) = load("scheduler/static-pod.yaml")
    patches = [yaml.safe_load(patch) for patch in cluster["nodes"][0]["kubeadmConfigPatches"]]
    assert [patch["apiVersion"] for patch in patches] == ["kubeadm.k8s.io/v1beta4", "kubeadm.k8s.io/v1beta3"]
    file, (volume,) = scheduler_arguments(kubeadm)
    assert file == f"{ON_CONTROL_PLANE}/default-scheduler.yaml"
    assert (volume["hostPath"], volume["mountPath"], volume["readOnly"]) == (ON_CONTROL_PLANE, ON_CONTROL_PLANE, True)
    assert all(scheduler_arguments(patch) == (file, [volume]) for patch in patches)
    (container,) = pod["spec"]["containers"]
    assert container["command"] == [f"--config={file}"]
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == [ON_CONTROL_PLANE]
    assert [volume["hostPath"]["path"] for volume in pod["spec"]["volumes"]] == [ON_CONTROL_PLANE]


def test_the_kind_cluster_mounts_the_folder_with_that_file() -> None:
    """One control plane whose mount is a folder of this checkout, and a worker."""
    (cluster,) = load("kind/cluster.yaml")
    assert (cluster["apiVersion"], cluster["kind"]) == ("kind.x-k8s.io/v1alpha4", "Cluster")
    control_plane, worker = cluster["nodes"]
    (mount,) = control_plane["extraMounts"]
    assert (PROJECT / mount["hostPath"] / "default-scheduler.yaml").is_file()
    assert (mount["containerPath"], mount["readOnly"]) == (ON_CONTROL_PLANE, True)
    assert worker == {"role": "worker"}


@pytest.mark.parametrize(
    ("address", "port", "allowed"),
    [
        ("93.184.216.34", 443, True),
        ("2606:2800:21f::1", 443, True),
        ("93.184.216.34", 80, False),
        ("169.254.169.254", 443, False),
        ("169.254.169.254", 80, False),
        ("169.254.169.254", 53, True),
        ("10.96.0.1", 443, False),
        ("172.31.255.255", 443, False),
        ("192.168.0.1", 443, False),
        ("100.64.0.1", 443, False),
        ("127.0.0.1", 443, False),
        ("239.1.1.1", 443, False),
        ("192.0.2.1", 6443, True),
        ("2001:db8::1", 6443, True),
        ("2001:db8::1", 443, False),
        ("64:ff9b::1.1.1.1", 443, True),
        ("64:ff9b::169.254.169.254", 443, False),
        ("64:ff9b::10.0.0.1", 443, False),
        ("2002:a00:1::1", 443, False),
        ("2001:0:a00:1::1", 443, False),
        ("fd00::1", 443, False),
        ("fe80::1", 443, False),
        ("::1", 443, False),
    ],
    ids=str,
)
def test_the_example_policy_lets_out_to_public_registries_and_name_services(
    address: str, port: int, allowed: bool
) -> None:
    """Neither the metadata service nor anything in the cluster or the site can be reached by naming it in a pod."""
    (policy,) = load("manifests/network-policy.yaml")
    assert any(_lets_out(rule, address, port) for rule in policy["spec"]["egress"]) is allowed


def test_the_example_policy_excepts_the_same_of_ipv4_and_of_nat64() -> None:
    """RFC 6052: the last 32 bits of an address in 64:ff9b::/96 are an IPv4 address."""
    (policy,) = load("manifests/network-policy.yaml")
    blocks = [peer["ipBlock"] for rule in policy["spec"]["egress"] for peer in rule["to"]]
    excepted = {
        block["cidr"]: {ipaddress.ip_network(each) for each in block["except"]} for block in blocks if "except" in block
    }
    prefix = int(ipaddress.ip_address("64:ff9b::"))
    assert excepted["64:ff9b::/96"] == {
        ipaddress.IPv6Network((prefix | int(network.network_address), 96 + network.prefixlen))
        for network in excepted["0.0.0.0/0"]
    }


def _lets_out(rule: Document, address: str, port: int) -> bool:
    blocks = [peer["ipBlock"] for peer in rule["to"]]
    return any(each["port"] == port for each in rule["ports"]) and any(
        _within(address, block["cidr"]) and not any(_within(address, inner) for inner in block.get("except", []))
        for block in blocks
    )


def _within(address: str, network: str) -> bool:
    return ipaddress.ip_address(address) in ipaddress.ip_network(network)
