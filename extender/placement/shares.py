"""Which pods of a workload are in a share of it, such as 20 %.

Each pod has a bucket from 0 up to 100 and is in every share above it. So a share that is raised keeps its pods and gets
more, and one that is lowered keeps a part of them.
"""

import hashlib
import re

from extender.kubernetes.core_v1 import Pod

_COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
_ORDINAL = re.compile(r"[0-9]{1,9}", re.ASCII)
_GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, are spread evenly, however many there are
_NOWHERE = 100.0


def bucket_of(pod: Pod, namespace: str) -> float | None:
    """The pod's bucket, the same whenever and by whomever it is asked for; None for a pod without a name.

    Pods with an ordinal, of StatefulSets and indexed Jobs, have buckets by their controller and the ordinal, which are
    spread evenly over its pods: a pod's replacement has the same. Any other pod has a bucket by its name, so its
    replacement has another.
    """
    name = (pod.metadata and pod.metadata.name) or ""
    owner = pod.controller
    if owner and owner.name:
        ordinal = pod.annotations.get(_COMPLETION_INDEX) or name.removeprefix(f"{owner.name}-")
        if _ORDINAL.fullmatch(ordinal):
            return 100 * ((_fraction(namespace, owner.kind, owner.name) + int(ordinal) * _GOLDEN) % 1)
    return 100 * _fraction(namespace, name) if name else None


def bucket_by(key: str) -> float:
    """The bucket by any text; without one, as for a template, which is no pod yet, it is in no share but 100 %."""
    return 100 * _fraction(key) if key else _NOWHERE


def _fraction(*keys: str) -> float:
    """A number from 0 up to 1 that is the same for the same keys, in every process."""
    digest = hashlib.blake2b("/".join(keys).encode("utf-8", "replace"), digest_size=6).digest()
    return int.from_bytes(digest) / 2**48
