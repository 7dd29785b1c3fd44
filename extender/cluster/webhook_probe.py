"""Whether the API server reaches the webhook of this installation, as a pod of a dry run shows: a canary.

Only the API server knows. A webhook that answers us may still be one that the API server does not find, or does not
trust, and with `failurePolicy: Ignore` it says nothing of that.
"""

import enum
import re
from collections.abc import Callable

import msgspec

from extender.cluster.client import ClusterClient, ClusterRefused
from extender.cluster.dry_run import create_dry, restricted_pod
from extender.errors import ClusterError
from extender.placement.dry_run_mark import is_marked, marks_of
from extender.placement.patch import JsonObject
from extender.placement.policy import CANARY

PROBE_SECONDS = 40.0
"""The longest time for one probe: more than the 30 s that a webhook may take at most."""
_SHOWN_CHARACTERS = 500
_FAILED_WEBHOOK = "failed calling webhook"
"""So the API server (k8s.io/apiserver, admission/plugin/webhook/errors) says that a webhook with `failurePolicy: Fail`
did not answer; of one that denies the pod it says something else."""
_URL = re.compile(r"(https?://[^/\s\"?]+)[^\s\"]*")


class ProbeOutcome(enum.StrEnum):
    """What became of a canary.

    `PATCHED`: this installation's webhook has marked it. `UNPATCHED`: it came back without that mark.
    `WEBHOOK_FAILED`: a webhook with `failurePolicy: Fail` did not answer. `REFUSED`: the API server refused it for
    another reason, so nothing is known of the webhook. `UNREACHABLE`: the API server did not answer us.
    """

    PATCHED = "patched"
    UNPATCHED = "unpatched"
    WEBHOOK_FAILED = "webhook_failed"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"


class ProbeResult(msgspec.Struct, frozen=True):
    """What became of one canary, in how many seconds.

    `detail` is a sentence for people, empty if it was marked; a webhook's address in it has no path, which may be a
    secret. `pod` is the pod as it came back, with all that webhooks and policies did to it; None if none did.
    """

    outcome: ProbeOutcome
    detail: str
    latency_seconds: float
    is_without_namespace: bool = False
    pod: "JsonObject | None" = None


async def probe_webhook(
    client: ClusterClient, namespace: str, installation: str, *, nonce: str, clock: Callable[[], float]
) -> ProbeResult:
    """Sends one canary to `namespace`, which the webhook has to select. Needs the verb create on pods there.

    `installation` is the name that the webhook marks canaries by (`Config.canary_namespace`). `nonce` is up to 64
    letters, digits and dashes, and another one each time. Raises nothing: a failure is an outcome.
    """
    started_at = clock()
    pod = restricted_pod(annotations={CANARY: nonce})
    try:
        made = await create_dry(client, namespace, pod, timeout_seconds=PROBE_SECONDS)
    except ClusterRefused as exc:
        said = _shown(exc.said or str(exc))
        failed = exc.status >= 500 and _FAILED_WEBHOOK in said
        outcome = ProbeOutcome.WEBHOOK_FAILED if failed else ProbeOutcome.REFUSED
        return ProbeResult(outcome, f"HTTP {exc.status} {said}", clock() - started_at, exc.status == 404)
    except ClusterError as exc:
        return ProbeResult(ProbeOutcome.UNREACHABLE, _shown(str(exc)), clock() - started_at)
    latency_seconds = clock() - started_at
    if is_marked(made, nonce, installation):
        return ProbeResult(ProbeOutcome.PATCHED, "", latency_seconds, pod=made)
    return ProbeResult(ProbeOutcome.UNPATCHED, _unmarked(namespace, len(marks_of(made))), latency_seconds, pod=made)


def _unmarked(namespace: str, others: int) -> str:
    marked = f"marked only by the webhooks of {others} other installations" if others else "unmarked"
    return (
        f"a pod of namespace {namespace} came back {marked}: the API server did not call this installation's webhook, "
        "or a call failed and its failurePolicy is Ignore"
    )


def _shown(said: str) -> str:
    """What the API server says, without the paths of addresses, in which a token may be."""
    said = _URL.sub(r"\1", said)
    return said if len(said) <= _SHOWN_CHARACTERS else f"{said[:_SHOWN_CHARACTERS]}…"
