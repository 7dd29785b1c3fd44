"""The pods of the siege, and the calls about them that the API server and kube-scheduler make."""

from collections.abc import Sequence
from typing import Any

import aiohttp
import msgspec

from benchmarks import payloads
from benchmarks.siege.answers import NAMES
from benchmarks.siege.network import ADMISSION_PORT, API_PORT, API_SERVER, SCHEDULER_PORT, SERVICE

REVIEWS = f"https://{SERVICE}:{ADMISSION_PORT}/admission/pods"
FILTER = f"http://127.0.0.1:{SCHEDULER_PORT}/scheduler/filter"
PENDING_PODS = f"http://{API_SERVER}:{API_PORT}/siege/pods"
_HEADERS = {"Content-Type": "application/json"}


class CallFailed(RuntimeError):
    """There is no answer with status 200; the message says why in a few words."""


def new_session(source: str = API_SERVER) -> aiohttp.ClientSession:
    """Returns a client that calls from that address, accepts any certificate, and opens connections as it needs."""
    connector = aiohttp.TCPConnector(local_addr=(source, 0), ssl=False, limit=0)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))


async def call(session: aiohttp.ClientSession, url: str, body: bytes, timeout_seconds: float) -> bytes:
    """Returns the body of the answer. As in Go, a connection that was closed while it was idle is replaced.

    Raises:
        CallFailed: there is no answer in time.
    """
    timeout = aiohttp.ClientTimeout(total=timeout_seconds)
    for is_last in (False, True):
        try:
            async with session.post(url, data=body, headers=_HEADERS, timeout=timeout) as answer:
                if answer.status != 200:
                    raise CallFailed(f"status {answer.status}")
                return await answer.read()
        except TimeoutError:
            raise CallFailed("timed out") from None
        except (aiohttp.ClientError, OSError) as exc:
            if is_last or not isinstance(exc, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError):
                raise CallFailed(type(exc).__name__) from exc
    raise AssertionError


def new_pod(namespace: str, number: int, images: Sequence[str], secrets: Sequence[str] = ()) -> dict[str, Any]:
    """Returns a pod, the `number`-th of all: its name, uid and template are its own."""
    serial = f"{number:08x}"
    pod = payloads.pod(tuple(images), serial=serial, template=serial)
    pod["metadata"] |= {"namespace": namespace, "uid": f"{namespace}-{serial}"}
    if secrets:
        pod["spec"]["imagePullSecrets"] = [{"name": name} for name in secrets]
    return pod


def review_of(pod: dict[str, Any]) -> bytes:
    """Returns the AdmissionReview of the pod's creation."""
    return payloads.review_of(pod, pod["metadata"]["uid"])


def filter_of(pod: dict[str, Any]) -> bytes:
    """Returns kube-scheduler's filter request about the pod and all nodes, by name."""
    return msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": NAMES})
