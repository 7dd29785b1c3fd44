"""The chart of deploy/helm: which objects come of which values, and that they fit each other and the service."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from extender.cli.installation import CheckName
from extender.config.checks import parse_listen
from extender.config.reading import parse_config
from extender.config.tree import Config
from testbed.chart import CHART, NAME, objects_of, render
from testbed.objects import KubernetesObject
from tests.unit.deploy.renderings import CASES, FOLDER, MODES, PRESETS, kept, leaves, objects_in, rendered, values
from tests.unit.deploy.roles import rights_given, rights_taken
from tools.chart.__main__ import MANIFESTS, RIGHTS, manifest, manifest_names, rights_file, values_schema
from tools.chart.readme import readme
from tools.chart.schema import UndescribedValue, leaves_of, schema_of
from tools.docs.pages import page

pytestmark = pytest.mark.usefixtures("helm")


def one(objects: list[KubernetesObject], kind: str, name: str = "") -> KubernetesObject:
    (found,) = (each for each in objects if each["kind"] == kind and each["metadata"]["name"].endswith(name))
    return found


def of_kinds(objects: list[KubernetesObject], *kinds: str) -> list[KubernetesObject]:
    return [each for each in objects if each["kind"] in kinds]


def settings_of(objects: list[KubernetesObject]) -> dict[str, str]:
    maps = [each for each in of_kinds(objects, "ConfigMap") if "config.yaml" in each.get("data", {})]
    return {each["metadata"]["name"]: each["data"]["config.yaml"] for each in maps}


def template_of(workload: KubernetesObject) -> KubernetesObject:
    template: KubernetesObject = workload["spec"]["template"]
    return template


def service_in(template: KubernetesObject) -> KubernetesObject:
    containers = template["spec"].get("initContainers", []) + template["spec"]["containers"]
    found: KubernetesObject
    (found,) = (each for each in containers if each["name"] == "multiarch-extender")
    return found


# --- what is made from the chart, and what it is made from


def test_lint_finds_nothing(helm: Path) -> None:
    """Not even an advice, for the values as they are."""
    done = subprocess.run([helm, "lint", "--strict", CHART], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    said = [line for line in (done.stdout + done.stderr).splitlines() if line]
    assert said == [f"==> Linting {CHART}", "1 chart(s) linted, 0 chart(s) failed"]


def test_what_make_manifests_writes_is_what_is_committed() -> None:
    assert {file.stem for file in MANIFESTS.iterdir()} == set(manifest_names())
    for name in manifest_names():
        assert (MANIFESTS / f"{name}.yaml").read_text() == manifest(name), name
        assert "helm.sh/hook" not in manifest(name)  # `kubectl apply` would run the job
    assert (CHART / "values.schema.json").read_text() == values_schema()
    assert (CHART / "README.md").read_text() == readme()
    assert RIGHTS.read_text() == rights_file()


def test_the_schema_takes_descriptions_and_additions_from_comments() -> None:
    schema = schema_of('# A word.\n# @schema {"enum": ["a", "b"]}\nword: a\n')
    assert schema["properties"]["word"] == {"description": "A word.", "type": "string", "enum": ["a", "b"]}
    with pytest.raises(UndescribedValue, match=r"outer\.inner has no comment"):
        schema_of("# Known.\nouter:\n  # Known.\n  other: 1\n  inner: 2\n")


def test_the_readme_has_each_value_with_its_description() -> None:
    """A map whose keys have no comments is one value, as Helm's users fill it."""
    text = '# A word.\n# @schema {"minLength": 1}\nword: a\n# Outer.\nouter:\n  # Inner.\n  inner: {a: 1}\n'
    assert list(leaves_of(text)) == [("word", "a", "A word."), ("outer.inner", {"a": 1}, "Inner.")]
    declared = yaml.safe_load((CHART / "values.yaml").read_text())
    assert [path for path, _, _ in leaves_of((CHART / "values.yaml").read_text())] == [
        ".".join(path) for path in leaves(declared)
    ]


# --- renderings that are kept


@pytest.mark.parametrize("name", CASES)
def test_the_objects_of_a_case_are_those_that_are_kept(name: str) -> None:
    """`python -m tests.unit.deploy.renderings` writes them anew; the difference is for you to judge."""
    assert yaml.safe_load(kept(name)) == yaml.safe_load((FOLDER / f"{name}.yaml").read_text())


def test_every_preset_is_kept_and_differs_from_the_defaults() -> None:
    assert [name for name, case in CASES.items() if case.preset] == ["gke", "openshift", "kind", "k3s"]
    assert sorted(name for name, case in CASES.items() if case.preset) == PRESETS
    assert all((FOLDER / f"{name}.yaml").read_text().strip() != "{}" for name in PRESETS)


def test_every_value_is_in_a_case_that_is_kept() -> None:
    """So that a value which does nothing shows, as one that changes nothing there."""
    given = {path for case in CASES.values() for path in leaves(case.values)}
    files = (yaml.safe_load((CHART / f"values-{name}.yaml").read_text()) for name in PRESETS)
    given |= {path for each in files for path in leaves(each)}
    declared = yaml.safe_load((CHART / "values.yaml").read_text())
    unused = {path for path in leaves(declared) if not any(path == each[: len(path)] for each in given)}
    dashboard = {("monitoring", "dashboard", name) for name in ("enabled", "annotations")}  # whose file is long: below
    assert unused == {*dashboard, ("enabled",)}  # a parent's condition: below


@pytest.mark.parametrize(
    ("mode", "text", "parts"),
    [
        ("webhook", "", ["webhook"]),
        ("webhook", "config: {admission: {unknown: gate}}", ["webhook", "gates"]),
        ("policy", "", ["gates"]),
        ("second", "", ["webhook", "scheduler"]),
        ("second", "modes.secondScheduler.webhook: false", ["scheduler"]),
        ("default", "", ["scheduler"]),
        ("all", "", ["webhook", "scheduler", "gates"]),
    ],
)
def test_alerts_tell_of_parts_that_are_to_run(mode: str, text: str, parts: list[str]) -> None:
    """One that is switched off is not gone. All other rules are those of the file."""
    made = values(text) | {"monitoring": {"prometheusRule": {"enabled": True}}}
    modes = {name: {**MODES[mode].get(name, {}), **made.get("modes", {}).get(name, {})} for name in MODES[mode]}
    found = one(objects_of(render({**made, "modes": modes})), "PrometheusRule")["spec"]["groups"]
    kept_rules = [rule for group in found for rule in group["rules"]]
    assert [rule["labels"]["part"] for rule in kept_rules if rule.get("alert") == "MultiarchDown"] == parts
    groups = yaml.safe_load((CHART / "files" / "rules.yaml").read_text())["groups"]
    everything = [rule for group in groups for rule in group["rules"]]
    assert [rule for rule in kept_rules if rule.get("alert") != "MultiarchDown"] == [
        rule for rule in everything if rule.get("alert") != "MultiarchDown"
    ]


def test_the_dashboard_is_the_file() -> None:
    text = "{monitoring.dashboard: {enabled: true, annotations: {grafana_folder: f}}, monitoring.labels: {team: a}}"
    found = one(rendered(text), "ConfigMap", "-dashboard")
    assert found["metadata"]["annotations"] == {"grafana_folder": "f"}
    assert {"grafana_dashboard": "1", "team": "a"}.items() <= found["metadata"]["labels"].items()
    assert found["data"] == {"multiarch-extender.json": (CHART / "files" / "dashboard.json").read_text()}


# --- objects fit each other and the service


@pytest.mark.parametrize("name", CASES)
def test_the_parts_of_a_case_fit_each_other(name: str) -> None:
    """Settings that the service accepts; selectors, ports, mounts, paths and times that agree with them."""
    objects = objects_in(name)
    settings = {part: parse_config(text, "config.yaml") for part, text in settings_of(objects).items()}
    workloads = {each["metadata"]["name"]: each for each in of_kinds(objects, "Deployment", "DaemonSet")}
    assert settings.keys() == workloads.keys()
    for part, workload in workloads.items():
        config, template = settings[part], template_of(workload)
        labels, container = template["metadata"]["labels"], service_in(template)
        selectors = [workload["spec"]["selector"]] + [
            each["spec"]["selector"]
            for each in of_kinds(objects, "Service", "PodDisruptionBudget")
            if each["metadata"]["name"] == part
        ]
        assert all(each.get("matchLabels", each).items() <= labels.items() for each in selectors)
        mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        assert sorted(mounts) == sorted(each["name"] for each in template["spec"]["volumes"])
        assert container["args"] == ["serve", f"--config={mounts['configuration']}/config.yaml"]
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        assert ports.pop("operations") == parse_listen(config.operations.listen)[1]
        assert ports.pop("webhook", None) == (
            parse_listen(config.admission.listen)[1] if config.admission.listen else None
        )
        assert ports.pop("scheduler", 8880) == 8880
        probes = [container[f"{each}Probe"]["httpGet"]["path"] for each in ("startup", "liveness", "readiness")]
        assert probes == ["/livez", "/livez", "/readyz"]  # what is not ready waits, and is not killed for it
        assert template["spec"]["terminationGracePeriodSeconds"] > config.shutdown.grace_seconds
        for configuration in of_kinds(objects, "MutatingWebhookConfiguration"):
            if configuration["metadata"]["name"] == part:
                pods = configuration["webhooks"][0]
                assert config.admission.wait_seconds < pods["timeoutSeconds"]


@pytest.mark.parametrize("name", [name for name in CASES if name != "bare"])
def test_accounts_have_the_rights_that_their_settings_take_and_no_other(name: str) -> None:
    """By the table that the service goes by; kube-scheduler's own Lease aside."""
    objects = objects_in(name)
    for part, text in settings_of(objects).items():
        own = [each for each in objects if not each["metadata"]["name"].endswith("-leader")]
        [workload] = (each for each in of_kinds(objects, "Deployment", "DaemonSet") if each["metadata"]["name"] == part)
        assert rights_given(own, template_of(workload)["spec"]["serviceAccountName"]) == rights_taken(text, NAME)


OF_RIGHTS = (
    "config.admission.unknown: gate",
    "config.registry.pull_secrets: []",
)  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "text"),
    [("all", text) for text in (*OF_RIGHTS, "probeNamespace: dry")]
    + [(mode, "{" + ", ".join(OF_RIGHTS) + "}") for mode in MODES],
)
def test_rights_follow_settings_in_every_mode(mode: str, text: str) -> None:
    objects = rendered(text, mode)
    for part, settings in settings_of(objects).items():
        own = [each for each in objects if not each["metadata"]["name"].endswith("-leader")]
        assert rights_given(own, part) == rights_taken(settings, NAME)


@pytest.mark.parametrize(
    ("image", "registry", "expected"),
    [
        ("r.example.com:5000/team/app", "", "r.example.com:5000/team/app"),
        ("r.example.com:5000/team/app", "m.example.com", "m.example.com/team/app"),
        ("localhost/app", "m.example.com/copies", "m.example.com/copies/app"),
        ("team/app", "m.example.com", "m.example.com/team/app"),
        ("app", "m.example.com", "m.example.com/app"),
    ],
)
def test_a_registry_of_all_takes_the_place_of_the_host(image: str, registry: str, expected: str) -> None:
    """Of ours and of kube-scheduler's; what is no host is kept."""
    made = {"global": {"imageRegistry": registry}, "image": {"repository": image}, "modes": MODES["second"]}
    template = template_of(one(objects_of(render(made)), "Deployment"))
    assert service_in(template)["image"] == f"{expected}:0.1.0"
    (scheduler,) = template["spec"]["containers"]
    assert scheduler["image"] == f"{registry or 'registry.k8s.io'}/kube-scheduler:v1.36.3"


def test_what_pods_share_has_an_override_for_each_part() -> None:
    """Maps are merged, lists replaced, and no other part heeds it."""
    shared = "{podLabels: {a: '1'}, tolerations: [{key: a, operator: Exists}], resources: {limits: {cpu: '1'}}"
    own = "overrides.secondScheduler: {podLabels: {b: '2'}, tolerations: [], resources: {limits: {memory: 1Gi}}}}"
    objects = rendered(f"{shared}, {own}", "all")
    webhook, second = (template_of(one(objects, "Deployment", name)) for name in ("-webhook", "-scheduler"))
    assert {"a": "1", "b": "2"}.items() <= second["metadata"]["labels"].items()
    assert "b" not in webhook["metadata"]["labels"]
    assert len(webhook["spec"]["tolerations"]) == len(second["spec"]["tolerations"]) + 1
    limits = [service_in(each)["resources"]["limits"] for each in (webhook, second)]
    assert limits == [{"cpu": "1", "memory": "512Mi"}, {"cpu": "1", "memory": "1Gi"}]


def test_there_are_few_values() -> None:
    """Each is here because somebody sets it; whoever adds one more takes another away."""
    assert len(list(leaves(yaml.safe_load((CHART / "values.yaml").read_text())))) <= 85


def test_the_table_of_sizes_begins_with_what_the_chart_requests() -> None:
    """And with the settings' own size of the cache."""
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())["resources"]
    first, *_ = re.findall(r"^\| 10,000 .*", page("how-to/install-with-helm.md"), re.MULTILINE)
    requests, limits, size = (cell.strip() for cell in first.strip("|").split("|")[2:])
    assert requests == f"{defaults['requests']['cpu']}, {defaults['requests']['memory']}"
    assert limits == defaults["limits"]["memory"]
    assert size == f"{Config().cache.size:,} (default)"


def test_two_releases_share_no_name_and_no_pod() -> None:
    """Cluster-wide objects included."""
    first, second = (objects_of(render({"modes": MODES["all"]}, release=name)) for name in ("blue", "green"))
    names = [{(each["kind"], each["metadata"]["name"]) for each in objects} for objects in (first, second)]
    assert names[0] & names[1] == set()
    selectors = [one(objects, "Deployment", "-webhook")["spec"]["selector"] for objects in (first, second)]
    assert selectors[0] != selectors[1]


@pytest.mark.parametrize("condition", ["placement.enabled", f"{CHART.name}.enabled"])
def test_as_a_part_of_another_chart(tmp_path: Path, condition: str) -> None:
    """A parent has a condition, of its own values or of ours, and globals, of which we know two."""
    parent = tmp_path / "parent"
    (parent / "charts").mkdir(parents=True)
    (parent / "charts" / CHART.name).symlink_to(CHART)
    chart = {"apiVersion": "v2", "name": "parent", "version": "1.0.0"}
    dependency = {"name": CHART.name, "version": "0.1.0", "condition": condition}
    (parent / "Chart.yaml").write_text(yaml.safe_dump({**chart, "dependencies": [dependency]}))
    shared = {"imageRegistry": "mirror.example.com", "imagePullSecrets": [{"name": "all"}], "theirs": {}}
    own = {CHART.name: {"image": {"repository": "r.example.com/app"}}}
    (parent / "values.yaml").write_text(yaml.safe_dump({"global": shared, **own}))
    objects = objects_of(render({}, chart=parent, release="shop"))
    deployment = one(objects, "Deployment")
    assert deployment["metadata"]["name"] == "shop-multiarch-extender-webhook"
    template = template_of(deployment)
    assert service_in(template)["image"] == "mirror.example.com/app:0.1.0"
    assert template["spec"]["imagePullSecrets"] == [{"name": "all"}]
    assert objects_of(render(values(f"{condition}: false"), chart=parent)) == []


# --- rules with more than one outcome


@pytest.mark.parametrize(
    ("version", "image"),
    [
        ("v1.34.1-eks-1a2b3c", "v1.34.1"),
        ("v1.35.2-gke.1389000", "v1.35.2"),
        ("v1.36.3+k3s1", "v1.36.3"),
        ("1.36", "v1.36.0"),
    ],
)
def test_kube_scheduler_is_of_the_clusters_version(version: str, image: str) -> None:
    """Whatever vendors add to it."""
    deployment = one(objects_of(render({"modes": MODES["second"]}, kubernetes=version)), "Deployment")
    (container,) = template_of(deployment)["spec"]["containers"]
    assert container["image"] == f"registry.k8s.io/kube-scheduler:{image}"


@pytest.mark.parametrize(
    ("mode", "kind", "text"),
    [
        ("policy", "Deployment", "config.admission.gate.exempt_priority_classes: [storage]"),
        ("default", "DaemonSet", "config: {scheduler: {assume: [linux/arm64]}}"),
        ("second", "Deployment", "modes.secondScheduler: {configuration: {percentageOfNodesToScore: 30}}"),
    ],
)
def test_a_change_of_what_is_read_at_the_start_makes_new_pods(mode: str, kind: str, text: str) -> None:
    """The checksum is that of every file of the ConfigMap, kube-scheduler's too."""
    made = [template_of(one(rendered(each, mode), kind))["metadata"]["annotations"] for each in ("", "", text)]
    assert made[0] == made[1] != made[2]


@pytest.mark.parametrize(
    ("mode", "text", "expected"),
    [
        ("webhook", "", "Default"),
        ("webhook", "dnsPolicy: ClusterFirst", "ClusterFirst"),
        ("webhook", "config: {cache: {url: 'rediss://me@redis.example.com/0?ca_file=/a/ca.crt'}}", "Default"),
        ("webhook", "config: {cache: {url: 'redis://10.0.0.7:6379'}}", "Default"),
        ("webhook", "config: {cache: {url: 'rediss://me@redis/0'}}", "ClusterFirst"),
        ("second", "config: {cache: {url: 'redis://redis.store.svc.cluster.local.'}}", "ClusterFirst"),
        ("default", "config: {cache: {url: 'redis://redis.store.svc'}}", "ClusterFirstWithHostNet"),
        ("webhook", "extraEnv: [{name: HTTPS_PROXY, value: 'http://proxy.web.svc:3128'}]", "ClusterFirst"),
        ("webhook", "extraEnv: [{name: https_proxy, value: proxy}]", "ClusterFirst"),
        ("webhook", "extraEnv: [{name: HTTPS_PROXY, value: 'http://proxy.example.com:3128'}]", "Default"),
        ("webhook", "extraEnv: [{name: NO_PROXY, value: '.svc'}]", "Default"),
        ("webhook", "registries.hosts: {docker.io: 'server = \"https://mirror.gcr.io\"'}", "Default"),
        ("webhook", "registries.hosts: {docker.io: '[host.\"http://registry:5000\"]'}", "ClusterFirst"),
        ("webhook", "config: {registry: {plain_http: ['registry:5000']}}", "ClusterFirst"),
        ("webhook", "config: {registry: {allow: ['docker.io', '*.example.com']}}", "Default"),
        ("webhook", "config: {registry: {allow: ['registry.tools.svc:5000']}}", "ClusterFirst"),
    ],
)
def test_names_of_services_are_asked_of_the_clusters_name_service(mode: str, text: str, expected: str) -> None:
    """The node's does not know them; else its answers are those by which the container runtime pulls."""
    workload = one(rendered(text, mode), "DaemonSet" if mode == "default" else "Deployment")
    assert template_of(workload)["spec"]["dnsPolicy"] == expected


LOOKS = ["post-install", "pre-delete", "test"]


@pytest.mark.parametrize(
    ("mode", "text", "expected"),
    [
        ("webhook", "", LOOKS),
        ("default", "", ["test"]),
        ("policy", "", ["pre-delete", "test"]),
        ("webhook", "config: {admission: {unknown: gate}}", [*LOOKS, "pre-delete"]),
        ("webhook", "doctor.enabled: false", []),
        ("webhook", "namespaceSelector: {matchLabels: {a: b}}", ["test"]),
        ("webhook", "webhook.excludeNamespaces: [default]", ["test"]),
        ("webhook", "{namespaceSelector: {matchLabels: {a: b}}, probeNamespace: dry}", LOOKS),
        ("second", "", ["test"]),
        ("webhook", "certificates.source: certManager", LOOKS),
        ("webhook", "certificates.source: existingSecret", ["test"]),
        ("webhook", "certificates: {source: existingSecret, caBundle: '-----BEGIN CERTIFICATE-----'}", LOOKS),
        ("webhook", "rbac.create: false", []),
    ],
)
def test_which_hooks_there_are(mode: str, text: str, expected: list[str]) -> None:
    """A check after an installation would fail where something is the user's to do first.

    `pre-delete` ends that check, and removes gates. One is of `helm test`, so that Helm tells of one.
    """
    hooks = of_kinds(rendered(text, mode, hooks=True), "Pod", "Job")
    assert sorted(each["metadata"]["annotations"]["helm.sh/hook"] for each in hooks) == sorted(expected)


def test_a_hook_makes_the_checks_that_its_account_can_make() -> None:
    """What it sees of a webhook where there is one; a dry run where there is a namespace for it."""

    def checks(text: str = "", mode: str = "webhook") -> set[str]:
        (container,) = one(rendered(text, mode, hooks=True), "Pod")["spec"]["containers"]
        return {each.partition("=")[2] for each in container["args"] if each.startswith("--only=")}

    everything = checks()
    assert everything == {*CheckName} - {"service", "certificate"}
    assert everything - checks("namespaceSelector: {matchLabels: {a: b}}") == {"probe"}
    assert everything - checks(mode="policy") == {"webhook", "namespaces", "probe"}


def test_labels_of_pods_win_over_common_ones_and_none_is_given_twice() -> None:
    """A key that is written twice would be refused by a strict reader."""
    text = render(values("{commonLabels: {team: a}, podLabels: {team: b}}"))
    assert template_of(one(objects_of(text), "Deployment"))["metadata"]["labels"]["team"] == "b"
    assert text.count("team: b") == 1


def test_words_that_yaml_takes_for_false_are_taken_as_they_are_meant() -> None:
    objects = rendered("{modes.webhook: {workloads: off}, config.registry.pull_secrets: off}")
    names = [each["name"].partition(".")[0] for each in one(objects, "MutatingWebhookConfiguration")["webhooks"]]
    assert names == ["pods", "updates"]
    (text,) = settings_of(objects).values()
    assert parse_config(text, "config.yaml").registry.pull_secrets is False


# --- what is said after the installation


def notes(helm: Path, *arguments: str) -> str:
    command = [str(helm), "install", "multiarch-extender", str(CHART), "--namespace=multiarch-extender"]
    command += ["--dry-run=client", "--set=image.repository=r/app", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.partition("NOTES:\n")[2]


def test_the_notes_say_what_to_try_and_what_is_missing(helm: Path) -> None:
    said = notes(helm)
    assert "kubectl run try --image=debian:12 --dry-run=server -o yaml | grep -A 12 tolerations" in said
    assert "helm test multiarch-extender --namespace multiarch-extender" in said
    assert "Still missing: nothing that the chart knows of." in said
    by_hand = notes(helm, "--set=certificates.source=existingSecret")
    assert "- The Secret multiarch-extender-webhook-tls (tls.crt, tls.key)" in by_hand
    assert "caBundle of the MutatingWebhookConfiguration multiarch-extender-webhook" in by_hand


@pytest.mark.parametrize("given", ["config.admission.unknown=gate", "modes.policy.enabled=true", ""])
def test_the_notes_say_how_to_let_held_pods_go_without_the_image(helm: Path, given: str) -> None:
    """Where pods may be held."""
    said = notes(helm, *([f"--set={given}"] if given else []))
    assert ("helm uninstall multiarch-extender --namespace multiarch-extender --no-hooks" in said) is bool(given)
