"""`explain`: prints why a pod may run on some nodes and not on others, after lookups of its images."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated

import msgspec
import typer

from extender.cli import manifest_files
from extender.cli.console import print_problem, print_structs
from extender.cli.explain_target import ExplainTarget
from extender.cli.explanation_text import print_explanations
from extender.cli.installed_settings import GivenSettings, given_settings
from extender.cli.lookups import RefusedSecrets, each_of, open_lookups
from extender.cli.options import (
    MANIFESTS_INSTEAD,
    Assignments,
    ConfigFile,
    Context,
    InstalledIn,
    Kubeconfig,
    Manifests,
    Namespace,
    Output,
    check_namespace,
    opened_client,
    read_settings,
)
from extender.cluster.client import ClusterClient, ClusterRefused
from extender.cluster.installed_webhooks import fetch_webhook_reach
from extender.cluster.workload_lists import fetch_namespace_annotations, list_nodes_and_images
from extender.config.tree import Config
from extender.credentials.keyring import Keyring
from extender.errors import ClusterError, ConfigError
from extender.kubernetes.core_v1 import CreatedSpec
from extender.kubernetes.reported_v1 import PodStatus, ReportedNode
from extender.placement.facts import Role
from extender.placement.mutation import Mutator
from extender.placement.node_images import NodeImages
from extender.placement.nodes import platform_of_node
from extender.placement.webhook_reach import WebhookReach
from extender.reports import explanation
from extender.reports.audit_report import RunAnswer
from extender.reports.explanation import Explanation, Subject
from extender.reports.running_containers import PlatformFault, containers_of, fault_of, other_name
from extender.reports.workload_reports import FINISHED, uses_of
from extender.resolver.image_cache import ImageQuery
from extender.resolver.pod_resolver import PodResolver
from extender.service.cluster_view import ClusterView
from extender.service.operator_policies import admission_settings_of

LOOKUP_SECONDS = 60.0


def explain(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[POD|KIND/NAME|KIND NAME]",
            help="A pod, or a workload such as deploy/web. With -f: only these.",
            show_default=False,
        ),
    ] = None,
    namespace: Namespace = "",
    manifests: Manifests = None,
    output: Output = "table",
    installed_in: InstalledIn = "",
    file: ConfigFile = None,
    assignments: Assignments = None,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
) -> None:
    """Show why a pod may run on some nodes and not on others, and what would change that.

    Exit code 1 if some pod has no node that is known to take it, or is on a node of the wrong platform. Exit code 2 if
    something in the manifests could not be read.

    Example: multiarch-extender explain deploy/web -n shop
    """
    own = read_settings(file, assignments, kubeconfig, context)
    given = given_settings(own, file, assignments, installed_in)
    target = _target_of(words or ())
    if not (target or manifests):
        raise ConfigError("nothing to explain; give a pod, KIND/NAME or -f FILE")
    read = manifest_files.read_manifests(manifests) if manifests else None
    found = asyncio.run(_by_lookups(ExplainTarget.parse(target, namespace, read), given))
    if not found:
        none = f"-f {' -f '.join(manifests or ())}: no object with pods" + (f" is {target}" if target else "")
        raise ConfigError("; ".join(read.unread) if read and read.unread else none)
    if output == "table":
        print_explanations(found)
    else:
        print_structs([each for _, each in found], output)
    for line in (*read.repeats, *read.patches, *read.unread) if read else ():
        print_problem(line)
    if read and read.unread:
        raise typer.Exit(2)
    if any(each.answer is not RunAnswer.YES or each.faults for _, each in found):
        raise typer.Exit(1)


def _target_of(words: Sequence[str]) -> str:
    """`KIND/NAME`, of one word or two. Raises ConfigError."""
    if len(words) > 2 or (len(words) == 2 and "/" in "".join(words)):
        raise ConfigError(f"{' '.join(words)}: give one pod, KIND/NAME or KIND NAME")
    return "/".join(words)


async def _by_lookups(target: ExplainTarget, given: GivenSettings) -> Sequence[tuple[Subject, Explanation]]:
    async with _client_of(given.own, is_needed=not target.manifests or bool(given.installed_in)) as client:
        try:
            if client and not target.manifests:
                await check_namespace(client, target.namespace or client.namespace)
            subjects = await target.find(client)
            settings = await given.beside(client) if client else given.own
            return list(zip(subjects, await explain_all(subjects, settings, client), strict=True))
        except ClusterError as exc:
            raise ConfigError(str(exc)) from exc


@contextlib.asynccontextmanager
async def _client_of(settings: Config, *, is_needed: bool) -> AsyncIterator[ClusterClient | None]:
    """A client of the cluster; None for manifests, unless one is named. Raises ConfigError."""
    if is_needed and not settings.has_cluster:
        raise ConfigError("cluster: none leaves no cluster to read the pod from; give -f FILE")
    if not is_needed and settings.cluster in ("auto", "none"):
        yield None
        return
    async with opened_client(settings, MANIFESTS_INSTEAD) as client:
        yield client


async def explain_all(
    subjects: Sequence[Subject], settings: Config, client: ClusterClient | None
) -> Sequence[Explanation]:
    """The explanation of each subject. Raises ClusterError if the cluster's nodes cannot be read."""
    nodes, listed = await list_nodes_and_images(client) if client else ([], NodeImages())
    reach = await fetch_webhook_reach(client) if client else WebhookReach()
    secrets = RefusedSecrets()
    annotations = await _defaults_of(subjects, client)
    view = ClusterView(client=client, annotations=annotations, on_refused_secret=secrets.note)
    async with open_lookups(settings, view) as (_, pod_resolver):

        async def one(subject: Subject) -> Explanation:
            try:
                is_reviewed = bool(settings.admission.listen) and _is_reached(subject, reach)
                return await _explain(subject, pod_resolver, settings, nodes, listed, is_reviewed=is_reviewed)
            except msgspec.ValidationError as exc:  # of a part that is decoded where it is needed
                raise ConfigError(f"{subject} is not as Kubernetes takes it: {exc}") from exc

        found = await each_of(subjects, one, str)
    for problem in secrets.problems():
        print_problem(f"not read: {problem}")
    return found


def _is_reached(subject: Subject, reach: WebhookReach) -> bool:
    labels: Mapping[str, str] = subject.document["metadata"].get("labels") or {}
    spec = subject.pod.spec or CreatedSpec()
    return reach.includes(subject.namespace, labels, spec.priority_class_name)


async def _defaults_of(subjects: Sequence[Subject], client: ClusterClient | None) -> dict[str, Mapping[str, str]]:
    """The annotations of the subjects' namespaces: those of manifests come before the cluster's."""
    found: dict[str, Mapping[str, str]] = {}
    if client:
        for namespace in dict.fromkeys(each.namespace for each in subjects):
            try:
                found |= await fetch_namespace_annotations(client, namespace)
            except ClusterRefused as exc:
                print_problem(f"not read: annotations of namespace {namespace}: {exc}")
    return found | {each.namespace: each.defaults for each in subjects if each.defaults is not None}


async def _explain(
    subject: Subject,
    pod_resolver: PodResolver,
    settings: Config,
    nodes: Sequence[ReportedNode],
    listed: NodeImages,
    *,
    is_reviewed: bool,
) -> Explanation:
    """The explanation after lookups. The caller has given the pod, or may read it, so its pull secrets count."""
    pod = subject.pod
    overrides = pod_resolver.overrides_of(pod, subject.namespace)
    question = pod_resolver.question(pod, subject.namespace, overrides, may_read=True)
    await pod_resolver.resolve(question, LOOKUP_SECONDS, revalidate=True)
    evidence = dict(zip(question.images, pod_resolver.evidence(question), strict=True))
    policy = pod_resolver.policy
    mutator = Mutator(policy, admission_settings_of(settings))
    cluster = explanation.cluster_nodes(nodes, listed)
    explained = explanation.explain(
        subject, evidence, overrides, policy, mutator, nodes, is_reviewed=is_reviewed, cluster=cluster
    )
    if explained.skipped or not subject.is_created:
        return explained
    faults = await _faults(subject, question.keyring, pod_resolver, nodes)
    return msgspec.structs.replace(explained, faults=faults)


async def _faults(
    subject: Subject, keyring: Keyring, pod_resolver: PodResolver, nodes: Sequence[ReportedNode]
) -> list[PlatformFault]:
    """Which containers of a pod do not match its node's platform."""
    spec, status = subject.pod.spec or CreatedSpec(), subject.status or PodStatus()
    platform = next((platform_of_node(node) for node in nodes if node.name == subject.node_name), None)
    is_exempt = spec.runtime_class_name in pod_resolver.policy.runtime_classes
    if platform is None or is_exempt or status.phase in FINISHED:
        return []
    images = ((use.name, use.image) for use in uses_of(spec) if use.image.role is not Role.VOLUME)
    resolver, faults = pod_resolver.resolver, list[PlatformFault]()
    for container in containers_of(images, status, platform):
        named, *_ = await resolver.resolve_all([ImageQuery(container.image.reference)], keyring, LOOKUP_SECONDS)
        other = other_name(container, named, "")
        then = await resolver.resolve_all([ImageQuery(other)], keyring, LOOKUP_SECONDS) if other else [None]
        if fault := fault_of(container, named, then[0], pod_resolver.policy.compatibility):
            faults.append(fault)
    return faults
