"""`audit`: finds which images and workloads keep a cluster, or manifests, from an architecture."""

import asyncio
import contextlib
import inspect
import json
import signal
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from extender.cli import manifest_files
from extender.cli.audit_html import write_html
from extender.cli.audit_lookups import ImageLookups
from extender.cli.audit_sources import Contents, read_cluster, read_files, read_images
from extender.cli.audit_writers import WRITERS
from extender.cli.console import print_document, print_problem, progress_bar
from extender.cli.installed_settings import GivenSettings, given_settings
from extender.cli.lookups import RefusedSecrets, open_lookups
from extender.cli.options import (
    MANIFESTS_INSTEAD,
    AllNamespaces,
    Assignments,
    ConfigFile,
    Context,
    InstalledIn,
    Kubeconfig,
    Manifests,
    Namespace,
    check_namespace,
    check_namespaces,
    on_cluster,
    opened_client,
    required_platforms,
)
from extender.cluster.client import ClusterClient
from extender.config.reading import read_config
from extender.errors import ClusterError, ConfigError
from extender.images.platform import Platform
from extender.logs import configure_logs
from extender.reports.audit_findings import AuditInput, new_findings, new_problems, wanted_newer, with_newer
from extender.reports.audit_findings import audit as make_audit
from extender.reports.audit_report import Audit, FindingRule
from extender.service.cluster_view import ClusterView
from extender.service.operator_policies import admission_settings_of, policy_of
from extender.service.resolving import cache_url_of


class AuditRequest(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    manifests: manifest_files.Manifests | None
    images: str
    required: Sequence[Platform]
    own: Sequence[str]
    find_newer: bool

    @property
    def is_live(self) -> bool:
        """Whether a cluster is audited, and no files."""
        return self.manifests is None and not self.images


def audit(
    all_namespaces: AllNamespaces = False,
    namespace: Namespace = "",
    manifests: Manifests = None,
    images: Annotated[
        str, typer.Option("--images", metavar="FILE", help="A list of images, one a line, instead of a cluster; or -.")
    ] = "",
    require: Annotated[
        list[str] | None,
        typer.Option(metavar="PLATFORM", help="Exit 1 if something does not run on it. Repeatable."),
    ] = None,
    baseline: Annotated[
        str, typer.Option(metavar="FILE", help="An earlier -o json: exit 1 only for what it does not have.")
    ] = "",
    allow_unread: Annotated[
        bool,
        typer.Option(
            "--allow-unread", help="Let pass what could not be read or is partly given, or that there is no workload."
        ),
    ] = False,
    own: Annotated[
        list[str] | None,
        typer.Option(metavar="PREFIX", help="Images under it, such as registry.example.com/team/, are your own."),
    ] = None,
    newer: Annotated[bool, typer.Option(help="Look for newer tags of images that block.")] = True,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FORMAT", help=f"How to print: {', '.join(WRITERS)}.")
    ] = "table",
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of -o json, and exit.")] = False,
    installed_in: InstalledIn = "",
    file: ConfigFile = None,
    assignments: Assignments = None,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
) -> None:
    """Show which images, workloads and DaemonSets keep a cluster or manifests from an architecture.

    Of a cluster it shows containers on nodes of the wrong platform too.

    Exit code 1 if it was interrupted or, with --require or --baseline, if something blocks, is unknown or was not read,
    or if there is no workload. Exit code 2 if a file of manifests could not be read to its end, unless --allow-unread
    lets it pass or the baseline has it.

    Example: helm template ./chart | multiarch-extender audit -f - --require linux/arm64
    """
    if schema:
        print_document(schema_of(Audit) + "\n")
        return
    check_namespaces(namespace, all_namespaces=all_namespaces)
    if sum((all_namespaces, bool(manifests), bool(images))) > 1 or (namespace and images):
        raise ConfigError("give only one of -A, -f and --images, and -n with no --images")
    if output not in WRITERS:
        raise ConfigError(f"-o {output} is no format; give one of {', '.join(WRITERS)}")
    settings = on_cluster(read_config(file, assignments or ()), kubeconfig, context)
    configure_logs("error", "console")
    required = required_platforms(require or ())
    earlier = _read_baseline(baseline) if baseline else None
    read = manifest_files.read_manifests(manifests) if manifests else None
    request = AuditRequest(
        namespace=namespace,
        manifests=read,
        images=images,
        required=required,
        own=own or (),
        find_newer=newer,
    )
    given = given_settings(settings, file, assignments, installed_in)
    report, audited = asyncio.run(_audit(given, request))
    print_document(write_html(report, audited, datetime.now(UTC)) if output == "html" else WRITERS[output](report))
    unread = [] if allow_unread else new_problems(report, earlier)
    if not (require or baseline):
        unread = [problem for problem in unread if read and problem in read.unread]
    complaints = [f"not read: {problem}" for problem in unread]
    if report.is_partial:
        kept = "" if cache_url_of(settings.cache) == "memory:" else "; the next run goes on from the cache"
        complaints.append(f"interrupted: the report is partial{kept}")
    elif require or baseline:
        complaints += _blocking(report, earlier, allow_unread=allow_unread)
    for complaint in complaints:
        print_problem(complaint)
    if read and not set(unread).isdisjoint(read.unread):
        raise typer.Exit(2)
    if complaints:
        raise typer.Exit(1)


def _blocking(report: Audit, baseline: Audit | None, *, allow_unread: bool) -> Iterator[str]:
    """What a gate fails for, besides what was not read."""
    if not (report.workloads or allow_unread):
        yield "nothing was audited: there is no workload; --allow-unread lets that pass"
    for finding in new_findings(report, baseline):
        if not (allow_unread and finding.rule is FindingRule.PARTLY_GIVEN):
            yield finding.message


async def _audit(given: GivenSettings, request: AuditRequest) -> tuple[Audit, str]:
    """The report, and what was audited."""
    async with contextlib.AsyncExitStack() as stack:
        client = None
        if request.is_live or given.installed_in:
            client = await stack.enter_async_context(opened_client(given.own, MANIFESTS_INSTEAD))
        try:
            settings = await given.beside(client) if client else given.own
            if client and request.is_live:
                await check_namespace(client, request.namespace)
            contents, audited = await _read(request, client)
        except ClusterError as exc:
            raise ConfigError(f"the cluster cannot be read: {exc}") from exc
        secrets = RefusedSecrets()
        cluster_view = ClusterView(client=client if request.is_live else None, on_refused_secret=secrets.note)
        sources, pod_resolver = await stack.enter_async_context(open_lookups(settings, cluster_view))
        progress = stack.enter_context(progress_bar())
        lookups = ImageLookups(pod_resolver, sources.list_tags, progress.step)
        stack.enter_context(_until_interrupted(lookups))
        progress.begin(lookups.count(contents.workloads))
        evidence = await lookups.look_up(contents.workloads)
        running = await lookups.look_up_running(contents.workloads)
        audit_input = AuditInput(
            workloads=contents.workloads,
            evidence=evidence,
            policy=policy_of(settings),
            admission=admission_settings_of(settings),
            nodes=contents.nodes,
            required=request.required,
            namespaces=contents.namespaces,
            reach=contents.reach,
            own=request.own,
            problems=[*contents.problems, *secrets.problems()],
            running=running,
        )
        report = make_audit(audit_input)
        wanted = wanted_newer(report) if request.find_newer and not lookups.is_stopped else []
        progress.begin(len(wanted))
        report = with_newer(report, await lookups.find_newer(wanted, audit_input.policy.compatibility))
        return msgspec.structs.replace(report, is_partial=lookups.is_stopped), audited


async def _read(request: AuditRequest, client: ClusterClient | None) -> tuple[Contents, str]:
    """What is audited, and what to call it. Raises ClusterError and ConfigError."""
    if request.manifests:
        return read_files(request.manifests, request.namespace), "manifests"
    if request.images or client is None:
        return read_images(request.images), "a list of images"
    audited = f"context {client.context}" if client.context else "this cluster"
    return await read_cluster(client, request.namespace), audited


def _read_baseline(path: str) -> Audit:
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Audit)
    except OSError as exc:
        raise ConfigError(f"--baseline {path}: {exc.strerror}; give the output of an earlier audit -o json") from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"--baseline {path}: it is no output of audit -o json: {exc}") from exc


@contextlib.contextmanager
def _until_interrupted(lookups: ImageLookups) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM ends the lookups; the second one ends the command."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)

    def stop() -> None:
        lookups.stop()
        restore()

    def restore() -> None:
        for each in signals:
            loop.remove_signal_handler(each)

    for each in signals:
        loop.add_signal_handler(each, stop)
    try:
        yield
    finally:
        restore()


def schema_of(kind: type) -> str:
    """The JSON schema of the kind, as text."""
    return json.dumps(_cleaned(msgspec.json.schema(kind)), indent=2)


def _cleaned(schema: object) -> object:
    """The schema with descriptions that have no indentation, as from Python 3.13 on docstrings have none."""
    if isinstance(schema, list):
        return [_cleaned(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    texts = {
        key: inspect.cleandoc(each) for key, each in schema.items() if key == "description" and isinstance(each, str)
    }
    return {key: _cleaned(each) for key, each in schema.items()} | texts
