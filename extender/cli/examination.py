"""The checks of `doctor`: what only somebody outside of the service sees, and what the service says itself.

A check reads what it takes, and yields what it has seen. What the cluster refuses us is not seen.
Source: k8s.io/kube-scheduler/config/v1/types.go.
"""

import re
from collections.abc import AsyncIterator, Iterator, Mapping, Set

import msgspec

from extender.cli.installation import Check, CheckName, Installation, Seen, name_of, not_seen, ok, wrong
from extender.cli.installation_objects import (
    UNFINISHED,
    InstalledPart,
    gating_policies,
    is_led,
    listed_pods,
    missing_rights,
    read_parts,
)
from extender.cli.installed_settings import GivenSettings
from extender.cli.lookups import describe_all
from extender.cli.webhook_checks import WEBHOOK_CHECKS
from extender.cluster.client import ClusterClient, ClusterRefused
from extender.cluster.gated_pods import is_held, list_gated_pods
from extender.cluster.node_trust import HOSTS
from extender.cluster.openshift_objects import list_mirror_objects
from extender.config.tree import Config
from extender.credentials.keyring import Keyring
from extender.durations import parse_seconds
from extender.errors import ClusterError, ConfigError, InvalidReference
from extender.fetcher.sources import open_local_sources
from extender.images.content import Cause, Failure
from extender.images.manifest import Image
from extender.images.reference import parse_reference
from extender.kubernetes.core_v1 import Pod
from extender.kubernetes.pod_templates import KubernetesObject
from extender.kubernetes.reported_v1 import PodStatus, ReportedPod
from extender.placement.facts import images_of
from extender.placement.gate import UnknownImages
from extender.placement.patch import Json, look
from extender.placement.policy import Choice, Overrides
from extender.registry.openshift import host_problems, routes_of
from extender.resolver.pod_resolver import PodResolver
from extender.service.cluster_view import ClusterView
from extender.service.resolving import open_pod_resolver

_PODS, _IMAGES = 2_000, 50
"""The most pods that are looked at, and the most registries that are asked, an image each."""
_RESTARTS = 3  # of a container that are nothing to speak of
_SCHEDULER_PATH = "/scheduler"
_VERBS = {"filterVerb": "filter", "prioritizeVerb": "prioritize", "preemptVerb": "preempt"}
_MIRROR_OBJECTS = "OpenShift's mirror objects"
_NAMED = msgspec.json.Decoder(Pod)
_SAID = re.compile(r"\[(?P<sign>[+-])\](?P<what>.+)")


async def examine(
    client: ClusterClient,
    given: GivenSettings,
    checks: Set[CheckName],
    *,
    selector: str,
    installed_in: str = "",
    namespace: str = "",
    scheduler: KubernetesObject | None = None,
) -> list[tuple[CheckName, Seen]]:
    """What these checks have seen. Nothing is asked that none of them takes. Raises ConfigError."""
    found: list[tuple[CheckName, Seen]] = []
    try:
        try:
            parts = await read_parts(client, selector, installed_in)
        except ClusterRefused as exc:
            found.append((CheckName.WORKLOADS, not_seen("cluster", str(exc), "use an account that may read it")))
            return found
        if not parts:
            none = f"no Deployment or DaemonSet has the labels {selector}"
            found.append((CheckName.WORKLOADS, wrong("cluster", none, "install the chart, or give --selector")))
        installation = Installation(client, given, parts, selector, namespace, scheduler)
        for name, (check, right) in CHECKS.items() if parts else ():
            if name not in checks:
                continue
            try:
                found += [(name, seen) async for seen in check(installation)]
            except ClusterRefused as exc:
                found.append((name, not_seen("cluster", str(exc), f"use an account that may {right}")))
    except ClusterError as exc:
        raise ConfigError(str(exc)) from exc
    return found


async def _pods(it: Installation) -> AsyncIterator[Seen]:
    for part in it.parts:
        subject, counted = part.subject, f"{part.ready} of {part.wanted} pods are ready"
        logs = f"kubectl -n {part.namespace}"
        if not part.wanted:
            remedy = f"see the replicas, or the node selector, of {part.kind.lower()} {part.name}"
            yield not_seen(subject, "it has no pods, as none are wanted", remedy)
        elif not part.ready:
            remedy = f"{logs} describe {part.kind.lower()} {part.name}, and the logs of its pods"
            yield wrong(subject, f"none of {part.wanted} pods is ready", remedy)
        elif part.ready < part.wanted:
            yield ok(subject, counted, f"{logs} get pods")
        elif (restarts := await _restarts(it, part)) > _RESTARTS:
            seen = f"{counted}, and their containers were restarted {restarts} times"
            yield ok(subject, seen, f"{logs} logs --previous of the pod that restarts")
        else:
            yield ok(subject, counted)


async def _restarts(it: Installation, part: InstalledPart) -> int:
    """The most restarts of a container of the part; 0 where its pods may not be listed."""
    try:
        pods = await it.listed(f"/api/v1/namespaces/{part.namespace}/pods", part.pod_labels)
    except ClusterRefused as exc:
        if exc.status != 403:
            raise
        return 0
    statuses = (msgspec.convert(each, ReportedPod).status or PodStatus() for each in pods)
    lists = (each for status in statuses for each in (status.container_statuses, status.init_container_statuses))
    return max((each.restart_count for some in lists for each in some or ()), default=0)


async def _settings(it: Installation) -> AsyncIterator[Seen]:
    for part in it.parts:
        if part.refusal:
            yield not_seen(part.subject, part.refusal, "use an account that may get the ConfigMap")
        elif part.problem:
            yield wrong(part.subject, part.problem, "correct the ConfigMap, then restart the pods")


async def _service(it: Installation) -> AsyncIterator[Seen]:
    """What a ready pod of each part says of itself, through the API server's proxy."""
    for part in it.parts:
        port = part.config.operations.listen.rpartition(":")[2] if part.config else ""
        pods = await it.listed(f"/api/v1/namespaces/{part.namespace}/pods", part.pod_labels)
        pod = next((name_of(each) for each in pods if _is_ready(each)), "")
        if not (pod and port):
            yield not_seen(part.subject, "no pod of it is ready" if port else "it serves no /readyz")
            continue
        try:
            path = f"/api/v1/namespaces/{part.namespace}/pods/{pod}:{port}/proxy/readyz"
            text = (await it.client.get(path, {"verbose": ""})).decode(errors="replace")
        except ClusterRefused as exc:
            if not _SAID.search(exc.text):
                why = f"/readyz of its pod cannot be asked: HTTP {exc.status} {exc.said}".rstrip()
                remedy = "use an account for pods/proxy, and let the API server reach the port"
                yield not_seen(part.subject, why, remedy)
                continue
            text = exc.text
        said = [(found["sign"], found["what"]) for found in map(_SAID.fullmatch, text.splitlines()) if found]
        for sign, what in said:
            if sign == "-":
                yield wrong(part.subject, f"{pod} says: {what}", f"kubectl -n {part.namespace} logs {pod}")
        if all(sign == "+" for sign, _ in said):
            yield ok(part.subject, f"{pod} says: {'; '.join(what for _, what in said)}")


def _is_ready(pod: KubernetesObject) -> bool:
    conditions = look(pod, ("status", "conditions"))
    return any(
        look(each, ("type",)) == "Ready" and look(each, ("status",)) == "True"
        for each in (conditions if isinstance(conditions, list) else ())
    )


async def _rights(it: Installation) -> AsyncIterator[Seen]:
    for part in it.parts:
        subject = f"ServiceAccount {part.namespace}/{part.account}"
        if part.config is None:
            yield not_seen(subject, f"what it takes is not known, as the settings of {part.subject} are not")
        elif missing := await missing_rights(it.client, part, part.config):
            remedy = "apply the roles of the chart again (rbac.create)"
            yield wrong(subject, f"it may not {', '.join(map(str, missing))}", remedy)
        else:
            yield ok(subject, "it may do what its settings take")


async def _secrets(it: Installation) -> AsyncIterator[Seen]:
    """Which pods name pull secrets that the service is not to read."""
    limited = [each.config.registry for each in it.parts if each.config]
    limited = [each for each in limited if each.pull_secrets is not True]
    if all(each.has_logins for each in limited):  # which may open the same images; nobody can see from here
        return
    unread: dict[str, list[str]] = {}
    async for raw in listed_pods(it.client, _PODS, UNFINISHED):
        metadata, spec = (pod := _NAMED.decode(raw)).metadata, pod.spec
        namespace = (metadata and metadata.namespace) or ""
        if spec and spec.image_pull_secrets and not all(each.reads_secrets_in(namespace) for each in limited):
            unread.setdefault(namespace, []).append((metadata and metadata.name) or "")
    for namespace, names in sorted(unread.items()):
        seen = (
            f"pods that name pull secrets: {len(names)}, {min(names)} among them; the service reads none there: what "
            "only these open stays unknown"
        )
        better = "add it to registry.pull_secrets, or give the service a login (docs/how-to/private-registries.md)"
        yield ok(f"namespace {namespace}", seen, better)


async def _gates(it: Installation) -> AsyncIterator[Seen]:
    """Whether somebody removes gates of held pods, and of those that a policy of the API server is to hold."""
    held = sum(map(is_held, await list_gated_pods(it.client)))
    policies = await gating_policies(it.client, it.selector)
    leaders = [each.subject for each in it.parts if (held or policies) and await is_led(it.client, each)]
    remover = ", ".join(leaders)
    subject, runbook = "pods that our gate holds", "docs/runbooks.md#gates-without-leader"
    if held and not leaders:
        remedy = f"{runbook}; at once, unexamined: multiarch-extender ungate -A"
        yield wrong(subject, f"{held} pods are held, and nobody removes their gates", remedy)
    else:
        yield ok(subject, f"{held} pods are held; {remover} removes their gates" if held else "none is held")
    removing = any(each.config and each.config.admission.unknown is UnknownImages.GATE for each in it.parts)
    if not removing and it.of_unknown_settings:
        return  # which check `settings` says
    for policy in policies:
        subject = f"MutatingAdmissionPolicy {policy}"
        if leaders and removing:
            yield ok(subject, f"{remover} removes the gates of its pods")
        elif removing:
            yield wrong(subject, "it holds new pods, and nobody has the Lease by which gates are removed", runbook)
        else:
            remedy = "set admission.unknown to gate, or delete the policy and run multiarch-extender ungate -A"
            yield wrong(subject, "it holds new pods, and no part of the installation removes their gates", remedy)


async def _scheduler(it: Installation) -> AsyncIterator[Seen]:
    asked = [(each, each.config) for each in it.parts if each.config and each.config.scheduler.listen]
    for part in it.parts:
        if part.scheduler is not None:
            subject = f"KubeSchedulerConfiguration of {part.subject}"
            for seen in judge_scheduler(part.scheduler, subject, part.config):
                yield seen
    if it.scheduler is not None:
        config = asked[0][1] if asked else None
        for seen in judge_scheduler(it.scheduler, "the given KubeSchedulerConfiguration", config):
            yield seen
    elif unseen := ", ".join(each.subject for each, _ in asked if each.scheduler is None):
        why = "the cluster's own kube-scheduler has its configuration in a file of the control plane"
        yield not_seen(unseen, why, "give it as --scheduler-config")


def judge_scheduler(configuration: KubernetesObject, subject: str, config: Config | None) -> Iterator[Seen]:
    """Whether a KubeSchedulerConfiguration has kube-scheduler ask us, and waits for us as our settings promise."""
    listed = configuration.get("extenders")
    prefixes = [(each, str(look(each, ("urlPrefix",)))) for each in (listed if isinstance(listed, list) else ())]
    ours = [(each, prefix) for each, prefix in prefixes if prefix.rstrip("/").endswith(_SCHEDULER_PATH)]
    if not ours:
        seen = "no entry of `extenders` has a urlPrefix that ends in /scheduler"
        yield wrong(subject, seen, "add the extender, as deploy/scheduler has it")
        return
    problems = [problem for each, _ in ours for problem in _extender_problems(each, config)]
    yield from (wrong(subject, seen, remedy) for seen, remedy in problems)
    if not problems:
        yield ok(subject, f"it asks {ours[0][1]}")


def _extender_problems(extender: Json, config: Config | None) -> Iterator[tuple[str, str]]:
    for verb, path in _VERBS.items():
        found = look(extender, (verb,))
        if found not in (None, "", path) or (verb == "filterVerb" and not found):
            yield f"{verb} is {found!r}", f"make it `{path}`"
    if config is None:
        return
    retries = [f"scheduler.{name}: retry" for name in ("pending", "unknown")
               if getattr(config.scheduler, name) is Choice.RETRY]  # fmt: skip
    if look(extender, ("ignorable",)) and retries:
        yield (
            f"it is ignorable, so that the errors of {' and '.join(retries)} let a pod onto every node",
            "make it `ignorable: false`, or choose `pass`",
        )
    try:
        timeout = parse_seconds(str(look(extender, ("httpTimeout",))))
    except ValueError:
        return
    if timeout <= config.scheduler.wait_seconds:
        yield (
            f"httpTimeout is {timeout:g} s, and the service may wait {config.scheduler.wait_seconds:g} s for lookups",
            "make httpTimeout longer than scheduler.wait_seconds",
        )


async def _mirrors(it: Installation) -> AsyncIterator[Seen]:
    """Whether OpenShift's objects can be used, where a part goes by them."""
    if not any(each.config and each.config.registry.mirrors_of_openshift for each in it.parts):
        return
    objects, problems = await list_mirror_objects(it.client)
    try:
        routes = routes_of(objects)
    except ConfigError as exc:
        seen = f"{exc}: nodes and the service keep what they had"
        yield wrong(_MIRROR_OBJECTS, seen, "correct the objects (docs/how-to/mirrors.md)")
    else:
        yield ok(_MIRROR_OBJECTS, f"{len(routes.rules)} registries have mirrors or rules")
    for problem in problems:
        if problem.is_refused:
            yield not_seen(str(problem.what), problem.why, "use an account that may read it")
        else:
            remedy = "give it as registry.ca_files or registry.docker_config (docs/how-to/mirrors.md)"
            yield wrong(str(problem.what), problem.why, remedy)
    for why in host_problems(objects.trust):
        yield wrong(str(HOSTS), why, "correct additionalTrustedCA of the image configuration")


async def _registries(it: Installation) -> AsyncIterator[Seen]:
    """Whether the registries of running pods answer from here, an image of each."""
    chosen: dict[str, tuple[str, Pod]] = {}
    async for raw in listed_pods(it.client, _PODS):
        _choose(_NAMED.decode(raw), chosen)
    if not chosen:
        yield not_seen("registries", "no pod is running that names one")
        return
    async with open_pod_resolver(it.settings, ClusterView(client=it.client), open_local_sources) as pod_resolver:
        wanted = [(image, _keyring_of(pod, pod_resolver)) for image, pod in chosen.values()]
        found = await describe_all(wanted, pod_resolver.resolver)
    for (host, (image, _)), answer in zip(chosen.items(), found, strict=True):
        yield _judge_registry(f"registry {host}", image, answer)


def _choose(pod: Pod, chosen: dict[str, tuple[str, Pod]]) -> None:
    """Adds the pod's first image of each registry that has none yet."""
    for image in images_of(pod):
        try:
            host = parse_reference(image.reference).domain
        except InvalidReference:
            continue
        if len(chosen) < _IMAGES:
            chosen.setdefault(host, (image.reference, pod))


def _keyring_of(pod: Pod, pod_resolver: PodResolver) -> Keyring:
    namespace = (pod.metadata and pod.metadata.namespace) or ""
    return pod_resolver.question(pod, namespace, Overrides(), may_read=True).keyring


def _judge_registry(subject: str, image: str, answer: Image | Failure) -> Seen:
    match answer:
        case Failure(cause=Cause.NOT_ALLOWED | Cause.LOOKING_UP | Cause.INVALID_REFERENCE):
            return not_seen(subject, f"it was not asked for {image}: {answer.detail}")
        case Failure(cause=Cause.UNAVAILABLE | Cause.THROTTLED):
            remedy = "repair the way from here to it, or give a mirror (docs/how-to/mirrors.md)"
            return wrong(subject, f"{image}: {answer.detail}", remedy)
        case _:
            return ok(subject, "it answers")


CHECKS: Mapping[CheckName, tuple[Check, str]] = {
    CheckName.PODS: (_pods, "list pods"),
    CheckName.SETTINGS: (_settings, "get ConfigMaps"),
    CheckName.SERVICE: (_service, "list pods, and get pods/proxy"),
    CheckName.RIGHTS: (_rights, "ask for others' rights"),
    CheckName.SECRETS: (_secrets, "list pods"),
    **WEBHOOK_CHECKS,
    CheckName.GATES: (_gates, "list pods and policies, and get Leases"),
    CheckName.SCHEDULER: (_scheduler, "get ConfigMaps"),
    CheckName.MIRRORS: (_mirrors, "list them"),
    CheckName.REGISTRIES: (_registries, "list pods"),
}
"""Each check, and the right that it takes."""
