"""Tells callers who may know it what is known: of a pod that they may read, or of an image.

A pod is explained to whoever may get it: its images are looked at with its own pull secrets and the operator's
credentials. An image alone is told to whoever may get pods: with the operator's credentials to those who may in every
namespace, else as anybody may see it. No pull secret is used for an image alone.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping

import msgspec

from extender.budgets import UNAUTHENTICATED
from extender.cluster.caller_access import AccessBusy, CallerAccess
from extender.credentials.keyring import JoinedKeyring
from extender.images.content import Evidence
from extender.images.platform import Platform
from extender.kubernetes.authentication_v1 import UserInfo
from extender.kubernetes.pod_templates import KubernetesObject, node_of, pod_of
from extender.kubernetes.reported_v1 import NamedPod
from extender.outlets.explaining import PodExplainer
from extender.outlets.pod_resolver import PodResolver
from extender.placement.facts import Pending, PodImage, RunsOn, Unknown, fact_of
from extender.reports.explanation import Subject
from extender.resolver.image_cache import ImageQuery
from extender.server.authenticated import RefusedCaller

SOURCE = "the memory of the service"
_MOST_IMAGE = 1024  # characters; references that can be pulled have fewer than 800
_OBJECT = msgspec.json.Decoder(KubernetesObject)
_POD = msgspec.json.Decoder(NamedPod)


class ImageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an image: `state` is known, pending or unknown, the last two with `cause` and `detail`.

    `platforms` are sorted, and empty unless the image is known. `architectures` are those of its platforms.
    """

    image: str
    state: str
    platforms: list[str]
    architectures: list[str]
    digest: str
    cause: str
    detail: str
    age_seconds: float | None
    is_fresh: bool


class FactsOutlet:
    """Answers `/explain` and `/facts`. `platforms` gives those of the cluster's nodes.

    `wait_seconds` is how long a question about an image waits for its lookup.
    """

    def __init__(
        self,
        explainer: PodExplainer,
        pod_resolver: PodResolver,
        access: CallerAccess,
        *,
        platforms: Callable[[], frozenset[Platform]],
        wait_seconds: float,
    ) -> None:
        self._explainer = explainer
        self._pod_resolver = pod_resolver
        self._access = access
        self._platforms = platforms
        self._wait_seconds = wait_seconds

    async def identify(self, token: str, address: str) -> UserInfo | None:
        """Whose the token is; None if it is nobody's.

        Raises:
            RefusedCaller: too many tokens are being reviewed.
            ClusterError: the cluster could not be asked.
        """
        async with _refusing_when_busy():
            return await self._access.identify(token, address)

    async def explain(self, user: UserInfo, query: Mapping[str, str]) -> bytes:
        """The explanation of the pod `pod` in `namespace`, from memory. Starts no lookup.

        Raises:
            RefusedCaller: the caller may not get the pod, or there is none.
            ClusterError: the cluster could not be asked.
        """
        namespace, name = _wanted(query, "namespace", "pod")
        await self._require(user, namespace, name)
        async with _refusing_when_busy():
            raw = await self._access.fetch_pod(user, namespace, name)
        if raw is None:
            raise RefusedCaller(404, f"there is no pod {namespace}/{name}")
        manifest = {**_OBJECT.decode(raw), "kind": "Pod"}
        pod = _POD.decode(msgspec.json.encode(pod_of(manifest)))
        subject = Subject(kind="Pod", name=name, namespace=namespace, pod=pod)
        told = self._explainer.from_memory(subject, self._platforms())
        return msgspec.json.encode(msgspec.structs.replace(told, source=SOURCE, node_name=node_of(manifest)))

    async def facts(self, user: UserInfo, query: Mapping[str, str]) -> bytes:
        """The facts of `image`, looked up if memory does not have them. `namespace` is where the caller may get pods.

        Raises:
            RefusedCaller: the caller may get pods neither everywhere nor in the namespace.
            ClusterError: the cluster could not be asked.
        """
        (reference,) = _wanted({key: query[key] for key in query if key != "namespace"}, "image")
        if len(reference) > _MOST_IMAGE:
            raise RefusedCaller(400, f"image has more than {_MOST_IMAGE} characters")
        namespace = query.get("namespace", "")
        is_everywhere = await self._may(user, "", "")
        if not is_everywhere:
            if not namespace:
                raise RefusedCaller(
                    403, f"{user.username} may not get pods in every namespace; name one where that is so"
                )
            await self._require(user, namespace, "")
        parts = (self._pod_resolver.keyring,) if is_everywhere else ()
        keyring = JoinedKeyring(parts, tenant=UNAUTHENTICATED)
        image = ImageQuery(reference)
        async with _refusing_when_busy(), self._access.turn(user):
            await self._pod_resolver.resolver.resolve_all([image], keyring, self._wait_seconds)
        return msgspec.json.encode(_facts(reference, self._pod_resolver.resolver.evidence(image, keyring)))

    async def _require(self, user: UserInfo, namespace: str, name: str) -> None:
        if not await self._may(user, namespace, name):
            which = f"pod {namespace}/{name}" if name else f"pods in namespace {namespace}"
            raise RefusedCaller(403, f"{user.username} may not get {which}")

    async def _may(self, user: UserInfo, namespace: str, name: str) -> bool:
        async with _refusing_when_busy():
            return await self._access.may_get_pod(user, namespace, name)


@contextlib.asynccontextmanager
async def _refusing_when_busy() -> AsyncIterator[None]:
    try:
        yield
    except AccessBusy as exc:
        raise RefusedCaller(503, str(exc)) from exc


def _wanted(query: Mapping[str, str], *names: str) -> list[str]:
    """The values of the parameters, each of which must be given and no other."""
    unknown = sorted(query.keys() - set(names))
    if unknown:
        raise RefusedCaller(400, f"there is no parameter {unknown[0][:40]!r}; there is {', '.join(names)}")
    for name in names:
        if not query.get(name):
            raise RefusedCaller(400, f"{name} is missing")
    return [query[name] for name in names]


def _facts(reference: str, evidence: Evidence) -> ImageFacts:
    fact = fact_of(PodImage(reference), evidence.answer, may_be_pending=True)
    platforms = sorted(fact.platforms) if isinstance(fact, RunsOn) else []
    cause, detail = (fact.cause.value, fact.detail) if isinstance(fact, Pending | Unknown) else ("", "")
    return ImageFacts(
        image=reference,
        state="pending" if isinstance(fact, Pending) else "unknown" if isinstance(fact, Unknown) else "known",
        platforms=list(map(str, platforms)),
        architectures=sorted({each.architecture for each in platforms}),
        digest=evidence.digest,
        cause=cause,
        detail=detail,
        age_seconds=None if evidence.age_seconds is None else round(evidence.age_seconds, 1),
        is_fresh=evidence.is_fresh,
    )
