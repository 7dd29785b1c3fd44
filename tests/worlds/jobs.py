"""The Job controller, and a queue that lets suspended Jobs run where their template fits.

Sources: pkg/controller/job/job_controller.go; Kueue's pkg/scheduler/flavorassigner/flavorassigner.go and
pkg/podset. Limits: one pod a completion, without indexes, deadlines or policies of failure; the queue has no quota, and
a flavour for each architecture that nodes have, in the order of their names.
"""

from tests.unit.placement.kube_scheduler import allows, tolerates
from tests.worlds.api_kinds import Document
from tests.worlds.api_server import MERGE_PATCH, ApiServer
from tests.worlds.api_storage import Key
from tests.worlds.controllers import Controller, create_in_batches, is_active, phase_of, pod_from

ARCHITECTURE = "kubernetes.io/arch"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_FIRST_BACKOFF_SECONDS, _LAST_BACKOFF_SECONDS = 10.0, 600.0  # after pods that failed
_PLANNING_SECONDS = 1.0


class Jobs(Controller):
    """Runs pods until enough have succeeded."""

    kind = "Job"
    account = "job-controller"

    def __init__(self, api: ApiServer) -> None:
        super().__init__(api)
        self._failures_seen: dict[str, tuple[int, float]] = {}  # by uid: how many pods failed, and since when

    async def sync(self, key: Key) -> None:
        """Creates or deletes pods, and writes the status."""
        job = self.find(key)
        if job is None or _has_ended(job):
            return
        spec, pods = job["spec"], list(self.pods_of(job))
        active = [pod for pod in pods if is_active(pod)]
        succeeded = sum(phase_of(pod) == "Succeeded" for pod in pods)
        failed = sum(phase_of(pod) == "Failed" for pod in pods)
        status: Document = {"active": len(active), "succeeded": succeeded, "failed": failed}
        is_over = succeeded >= spec["completions"] or failed > spec["backoffLimit"]
        if is_over or spec["suspend"]:
            for pod in active:
                await self.delete_pod(pod)
            name = "Suspended" if not is_over else "Complete" if succeeded >= spec["completions"] else "Failed"
            self.set_status(job, status | {"active": 0, "conditions": [{"type": name, "status": "True"}]})
            return
        started = (job.get("status") or {}).get("startTime") or self.api.now()
        self.set_status(job, status | {"startTime": started})
        if self._waits(key, job["metadata"]["uid"], failed):
            return
        missing = min(spec["parallelism"], spec["completions"] - succeeded) - len(active)
        await create_in_batches(missing, lambda _: self.create_pod(job, _pod(job)))

    def _waits(self, key: Key, uid: str, failed: int) -> bool:
        """Whether pods failed so lately that no other one is created yet."""
        count, since = self._failures_seen.get(uid, (0, 0.0))
        now = self.api.time()
        if failed != count:
            count, since = failed, now
            self._failures_seen[uid] = (count, since)
        if count == 0:
            return False
        until = since + min(_FIRST_BACKOFF_SECONDS * 2 ** min(count - 1, 10), _LAST_BACKOFF_SECONDS)
        if now < until:
            self.enqueue_after(key, until - now)
        return bool(now < until)


def _has_ended(job: Document) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(each["type"] in ("Complete", "Failed") and each["status"] == "True" for each in conditions)


def _pod(job: Document) -> Document:
    pod = pod_from(job, "Job")
    metadata = job["metadata"]
    names = {"batch.kubernetes.io/job-name": metadata["name"], "batch.kubernetes.io/controller-uid": metadata["uid"]}
    pod["metadata"]["labels"] = {**pod["metadata"]["labels"], **names}
    return pod


class JobQueue(Controller):
    """Kueue: lets each suspended Job with its label run, on the first flavour that the template allows."""

    kind = "Job"
    account = "kueue-controller-manager"

    def __init__(self, api: ApiServer) -> None:
        super().__init__(api)
        self._seen: dict[str, float] = {}  # by uid: since when a Job waits
        api.subscribe("Node", lambda *_: self.enqueue_all())

    async def sync(self, key: Key) -> None:
        """Plans a Job, a moment after it came."""
        job = self.find(key)
        if job is None or not job["spec"]["suspend"] or QUEUE_LABEL not in (job["metadata"].get("labels") or {}):
            return
        now = self.api.time()
        ready_at = self._seen.setdefault(job["metadata"]["uid"], now) + _PLANNING_SECONDS
        if now < ready_at:
            self.enqueue_after(key, ready_at - now)
            return
        spec = job["spec"]["template"]["spec"]
        architecture = next((each for each in self._architectures() if self._fits(spec, each)), None)
        if architecture is None:
            return
        selector = {**(spec.get("nodeSelector") or {}), ARCHITECTURE: architecture}
        patch = {"spec": {"suspend": False, "template": {"spec": {"nodeSelector": selector}}}}
        await self.api.patch("Job", *key, patch, MERGE_PATCH, user=self.user)

    def _nodes(self, architecture: str) -> list[Document]:
        found = (stored.document for stored in self.api.storage.all("Node"))
        return [node for node in found if _architecture_of(node) == architecture]

    def _architectures(self) -> list[str]:
        found = {_architecture_of(stored.document) for stored in self.api.storage.all("Node")}
        return sorted(each for each in found if each)

    def _fits(self, spec: Document, architecture: str) -> bool:
        """Whether the template allows the flavour's label, and tolerates the taints that all its nodes have."""
        nodes = self._nodes(architecture)
        first = [taint for taint in nodes[0]["spec"].get("taints") or () if taint["effect"] != "PreferNoSchedule"]
        shared = [each for each in first if all(each in (node["spec"].get("taints") or ()) for node in nodes)]
        if any(not any(tolerates(each, taint) for each in spec.get("tolerations") or ()) for taint in shared):
            return False
        return allows(_about_architecture(spec), {"metadata": {"name": "", "labels": {ARCHITECTURE: architecture}}})


def _architecture_of(node: Document) -> str:
    return str((node["metadata"].get("labels") or {}).get(ARCHITECTURE, ""))


def _about_architecture(spec: Document) -> Document:
    """What the template says of the flavours' label alone, as Kueue looks at no other one."""
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    selector = {key: value for key, value in (spec.get("nodeSelector") or {}).items() if key == ARCHITECTURE}
    terms = ((((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(required)) or {}).get("nodeSelectorTerms")
    kept = [
        {"matchExpressions": [each for each in term.get("matchExpressions") or () if each["key"] == ARCHITECTURE]}
        for term in terms or ()
    ]
    # A term that says nothing of the label allows every flavour.
    if not kept or any(not term["matchExpressions"] for term in kept):
        return {"nodeSelector": selector}
    return {"nodeSelector": selector, "affinity": {"nodeAffinity": {required: {"nodeSelectorTerms": kept}}}}
