"""What `doctor` asks of the webhook: whether the API server sends pods to it, trusts it, and takes its answers.

Source: k8s.io/api/admissionregistration/v1/types.go.
"""

import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TypeAlias
from urllib.parse import urlsplit

from extender.certificates.own_certificate import InvalidCertificate
from extender.cli.installation import (
    Check,
    CheckName,
    Diagnosis,
    Installation,
    ReviewWebhook,
    not_seen,
    ok,
    selector_text,
    wrong,
)
from extender.cli.installation_objects import Certificate, read_certificate
from extender.cluster.client import ClusterClient, ClusterRefused
from extender.cluster.probe import is_reviewed, send_probe
from extender.errors import ClusterError
from extender.kubernetes.api_groups import WebhookClientConfig
from extender.reports.quantities import counted

_SOON_DAYS = 7.0
_TIMEOUT_SECONDS = 10  # of a webhook that states none
_MOST_CHARACTERS = 500
# So the API server (k8s.io/apiserver, admission/plugin/webhook/errors) says that a webhook with `failurePolicy: Fail`
# did not answer; of one that denies the pod it says something else.
_FAILED_WEBHOOK = "failed calling webhook"
_URL = re.compile(r"(https?://[^/\s\"?]+)[^\s\"]*")
_LOGS = "see what else is said of it here, and the logs of kube-apiserver and of the service"

WebhookCheck: TypeAlias = Callable[[Installation, ReviewWebhook], AsyncIterator[Diagnosis]]


async def _webhook(_installation: Installation, webhook: ReviewWebhook) -> AsyncIterator[Diagnosis]:
    stated = webhook.registered.timeout_seconds
    timeout = _TIMEOUT_SECONDS if stated is None else stated
    wait = webhook.config.admission.wait_seconds
    if timeout <= wait:
        seen = (
            f"timeoutSeconds is {timeout:g}, and the service may wait {wait:g} s for lookups: what it answers then "
            "comes too late"
        )
        yield wrong(webhook.subject, seen, "make timeoutSeconds longer than admission.wait_seconds")
    else:
        yield ok(webhook.subject, f"it is registered, with timeoutSeconds {timeout:g}")


async def _namespaces(installation: Installation, webhook: ReviewWebhook) -> AsyncIterator[Diagnosis]:
    users = await installation.selected(webhook.registered)
    if installation.namespace and installation.namespace not in users:
        seen = "the webhook's namespaceSelector does not select it, or it does not exist: its pods are not reviewed"
        yield wrong(f"namespace {installation.namespace}", seen, f"see the namespaceSelector of {webhook.subject}")
    elif users:
        yield ok(
            webhook.subject, f"its namespaceSelector selects {counted(len(users), 'namespace')}, {users[0]} among them"
        )
    else:
        seen = "its namespaceSelector selects none of the namespaces, so that it reviews no pod"
        wanted = selector_text(webhook.registered.namespace_selector)
        yield ok(webhook.subject, seen, f"label those that it is for, so that they meet {wanted}")


async def _certificate(installation: Installation, webhook: ReviewWebhook) -> AsyncIterator[Diagnosis]:
    try:
        found = await read_certificate(installation.client, webhook.workload, webhook.config, webhook.registered)
    except (ClusterError, InvalidCertificate) as exc:
        is_refused = isinstance(exc, ClusterRefused) and exc.status == 403
        yield (not_seen if is_refused else wrong)(webhook.subject, str(exc), "docs/how-to/certificates.md")
    else:
        for result in diagnose_certificate(webhook.subject, found, _called_name(webhook.registered.client_config)):
            yield result


def _called_name(called: WebhookClientConfig) -> str:
    """The name by which the API server calls the webhook, which its certificate has to be for."""
    if called.url:
        return urlsplit(called.url).hostname or ""
    return f"{called.service.name}.{called.service.namespace}.svc" if called.service else ""


def diagnose_certificate(subject: str, certificate: Certificate, name: str) -> Iterator[Diagnosis]:
    """Whether the API server trusts the certificate that the service shows, under the name by which it calls it."""
    what = f"the certificate in {certificate.where}"
    is_called = name in certificate.names
    if certificate.days_left <= 0:
        ended = f"{what} ended {-certificate.days_left:.0f} days ago"
        yield wrong(subject, ended, "renew it (docs/how-to/certificates.md)")
    elif not certificate.is_valid:
        remedy = "renew it, and correct the clock by which it was made (docs/how-to/certificates.md)"
        yield wrong(subject, f"{what} is not valid yet", remedy)
    elif certificate.days_left < _SOON_DAYS:
        better = "see that it is renewed (docs/runbooks.md#certificate-expires)"
        yield ok(subject, f"{what} ends in {certificate.days_left:.1f} days", better)
    elif certificate.is_trusted and is_called:
        yield ok(subject, f"{what} is trusted, and ends in {certificate.days_left:.0f} days")
    if not certificate.is_trusted:
        yield wrong(subject, f"no authority of its caBundle has signed {what}", "write that authority into caBundle")
    elif not is_called:
        seen = f"the API server calls {name}, and {what} is for {', '.join(sorted(certificate.names))}"
        yield wrong(subject, seen, "issue it for that name too")


async def _probe(installation: Installation, webhook: ReviewWebhook) -> AsyncIterator[Diagnosis]:
    """What the API server makes of a new pod in a reviewed namespace: the one that is asked about, if any is."""
    reviewed = await installation.selected(webhook.registered)
    if installation.namespace and installation.namespace not in reviewed:
        yield ok(webhook.subject, f"no pod was sent, as it does not review namespace {installation.namespace}")
    elif not reviewed:
        seen = "no namespace is selected to which a pod could be sent"
        yield not_seen(webhook.subject, seen, "see its namespaceSelector")
    else:
        yield await _probed(installation.client, webhook.subject, installation.namespace or reviewed[0])


async def _probed(client: ClusterClient, subject: str, namespace: str) -> Diagnosis:
    try:
        probe = await send_probe(client, namespace)
    except ClusterRefused as exc:
        said = f"HTTP {exc.status} {_without_tokens(exc.said or str(exc))}"
        if exc.status >= 500 and _FAILED_WEBHOOK in said:
            return wrong(subject, said, _LOGS)
        return not_seen(subject, said, "choose a namespace where you may create such a pod: --namespace NAME")
    if is_reviewed(probe):
        return ok(subject, f"a pod of namespace {namespace} came back patched")
    seen = (
        f"a pod of namespace {namespace} came back without a word of the webhook: the API server did not call it, or a "
        "call failed and its failurePolicy is Ignore"
    )
    return wrong(subject, seen, _LOGS)


def _without_tokens(said: str) -> str:
    """What the API server says, without the paths of addresses, in which a token may be."""
    said = _URL.sub(r"\1", said)
    return said if len(said) <= _MOST_CHARACTERS else f"{said[:_MOST_CHARACTERS]}…"


def _of_webhooks(check: WebhookCheck, missing: Callable[[str, str, str], Diagnosis]) -> Check:
    """The check of each webhook. `missing` says what it means that none is registered for a workload that reviews."""

    async def checked(installation: Installation) -> AsyncIterator[Diagnosis]:
        webhooks = await installation.webhooks()
        if not installation.serving:
            why = "its settings are not known" if installation.of_unknown_settings else "no part of it answers reviews"
            yield not_seen(installation.of_unknown_settings or "the installation", why)
        elif not webhooks:
            seen = f"no MutatingWebhookConfiguration has the labels {installation.selector}"
            yield missing("cluster", seen, "apply that of the chart: until then no pod is reviewed")
        for webhook in webhooks:
            async for result in check(installation, webhook):
                yield result

    return checked


WEBHOOK_CHECKS: Mapping[CheckName, tuple[Check, str]] = {
    CheckName.WEBHOOK: (_of_webhooks(_webhook, wrong), "list webhook configurations"),
    CheckName.NAMESPACES: (_of_webhooks(_namespaces, not_seen), "list webhook configurations and namespaces"),
    CheckName.CERTIFICATE: (_of_webhooks(_certificate, not_seen), "list webhook configurations"),
    CheckName.PROBE: (_of_webhooks(_probe, not_seen), "list webhook configurations and namespaces"),
}
"""Each check, and the right that it takes."""
