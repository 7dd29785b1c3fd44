"""The workloads that `audit` is of: those of a cluster, of manifests, or an image each of a list."""

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from extender.cli.console import print_problem
from extender.cli.manifest_files import Manifests
from extender.cluster.client import ClusterRefused
from extender.cluster.installed_webhooks import fetch_webhook_reach
from extender.cluster.listwatch import Getter
from extender.cluster.workload_lists import (
    POD,
    WORKLOAD_KINDS,
    fetch_account_secrets,
    fetch_namespace_annotations,
    list_documents,
    list_kind,
    list_nodes,
)
from extender.errors import ConfigError
from extender.kubernetes.core_v1 import LocalObjectReference
from extender.kubernetes.pod_templates import (
    is_policy,
    named,
    namespace_annotations,
    unread_images,
)
from extender.kubernetes.reported_v1 import ReportedNode, ReportedSpec
from extender.manifests.stream import ManifestError, decode_stream
from extender.placement.facts import PodImage
from extender.placement.nodes import platform_of_node
from extender.placement.webhook_reach import WebhookReach
from extender.reports.workload_reports import ImageUse, UnreadableWorkload, Workload, WorkloadCollector, WorkloadKey
from extender.yaml_nodes import BYTE_ORDER_MARK

_MOST_IMAGES = 100_000  # lines of a list
_COUNT_OR_COMMENT = re.compile(r"^[ \t]*\d+[ \t]+|(?:^|(?<=[ \t]))#.*")


class Contents(msgspec.Struct, frozen=True):
    """The workloads of a source, what a cluster has besides, and what could not be read of it."""

    workloads: list[Workload]
    nodes: list[ReportedNode]
    namespaces: Mapping[str, Mapping[str, str]]
    problems: list[str]
    reach: WebhookReach = WebhookReach()


async def read_cluster(client: Getter, namespace: str = "") -> Contents:
    """The workloads of a namespace or, if that is empty, of all; the nodes, and the namespaces' annotations.

    A kind that may not be listed is a problem, and so is an object that cannot be read.

    Raises:
        ClusterError: the API server cannot be reached, or refuses for another reason.
    """
    problems = list[str]()
    nodes: list[ReportedNode] = []
    with _noting(problems, "nodes"):
        nodes = await list_nodes(client)
    platforms = {node.name: platform_of_node(node) for node in nodes}
    collector = WorkloadCollector({name: platform for name, platform in platforms.items() if platform})
    for kind in WORKLOAD_KINDS:
        with _noting(problems, kind.plural):
            async for manifest in list_kind(client, kind, namespace):
                with _noting(problems, kind.plural):
                    collector.add(manifest)
    with _noting(problems, POD.plural):
        async for document in list_documents(client, POD.path(namespace)):
            with _noting(problems, POD.plural):
                collector.add_pod(document)
    accounts: Mapping[tuple[str, str], tuple[str, ...]] = {}
    with _noting(problems, "serviceaccounts"):
        accounts = await fetch_account_secrets(client, namespace)
    namespaces: Mapping[str, Mapping[str, str]] = {}
    with _noting(problems, "namespaces"):
        namespaces = await fetch_namespace_annotations(client, namespace)
    workloads = [_with_account_secrets(workload, accounts) for workload in collector.workloads()]
    return Contents(workloads, nodes, namespaces, problems, await fetch_webhook_reach(client))


def read_files(manifests: Manifests, namespace: str) -> Contents:
    """The workloads of manifests; `namespace` is that of those that name none."""
    collector, problems = WorkloadCollector(), [*manifests.unread]
    policies, objects = 0, manifests.objects
    for line in (*manifests.repeats, *manifests.patches):
        print_problem(line)
    for each in objects:
        if namespace and isinstance(metadata := each.manifest.setdefault("metadata", {}), dict):
            metadata["namespace"] = metadata.get("namespace") or namespace
        try:
            collector.add(each.manifest, each.source)
            if path := unread_images(each.manifest):
                problems.append(
                    f"{each.source}: {named(each.manifest)} names an image at {path}, which is no pod template"
                )
        except UnreadableWorkload as exc:
            problems.append(f"{each.source}: {exc}")
        policies += is_policy(each.manifest)
    if policies:
        print_problem(f"not workloads: {policies} policies or reviews")
    namespaces = namespace_annotations(each.manifest for each in objects)
    return Contents(collector.workloads(), [], namespaces, problems)


def read_images(path: str) -> Contents:
    """Each image of a list as a workload of its own; counts as of `uniq -c`, comments and blank lines are left out."""
    try:
        text, _ = decode_stream(sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes())
    except (OSError, ManifestError) as exc:
        raise ConfigError(f"--images {path}: it cannot be read: {exc}") from exc
    if not text:
        raise ConfigError(f"--images {path}: it is empty; see whether the command that wrote it failed")
    lines = (_COUNT_OR_COMMENT.sub("", line).strip() for line in text.removeprefix(BYTE_ORDER_MARK).splitlines())
    images = list(dict.fromkeys(filter(None, lines)))
    if text.strip() and not images:
        raise ConfigError(f"--images {path}: it has no images")
    if len(images) > _MOST_IMAGES:
        raise ConfigError(f"--images {path}: it has {len(images)} images; give {_MOST_IMAGES} at most")
    workloads = [
        Workload(
            key=WorkloadKey("", "Image", name),
            spec=ReportedSpec(),
            uses=(ImageUse(image=PodImage(name), used_as="image", name=""),),
        )
        for name in images
    ]
    return Contents(workloads, [], {}, [])


def _with_account_secrets(workload: Workload, accounts: Mapping[tuple[str, str], tuple[str, ...]]) -> Workload:
    """The workload with the pull secrets of its ServiceAccount, which pods get only if they name none themselves."""
    spec = workload.spec
    names = accounts.get((workload.key.namespace, spec.service_account_name or "default"))
    if spec.image_pull_secrets or not names:
        return workload
    secrets = tuple(LocalObjectReference(name) for name in names)
    return msgspec.structs.replace(workload, spec=msgspec.structs.replace(spec, image_pull_secrets=secrets))


@contextlib.contextmanager
def _noting(problems: list[str], what: str) -> Iterator[None]:
    try:
        yield
    except ClusterRefused as exc:
        if exc.status == 404:  # a kind that this cluster does not have
            return
        if exc.status != 403:
            raise
        problems.append(f"{what} cannot be listed: {exc}")
    except UnreadableWorkload as exc:
        problems.append(f"{what}: {exc}")
