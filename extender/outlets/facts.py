"""Tells callers who may know it what is known: of a pod that they may read, or of an image.

A pod is explained to whoever may get it: its images are looked at with its own pull secrets and the operator's
credentials. An image alone is told to whoever may get pods: with the operator's credentials to those who may in every
namespace, else as anybody may see it. No pull secret is used for an image alone.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from extender.budgets import UNAUTHENTICATED, Budget, declare_budget
from extender.cluster.caller_access import AccessBusy, CallerAccess
from extender.credentials.keyring import JoinedKeyring
from extender.images.content import Evidence
from extender.images.platform import Platform
from extender.kubernetes.authentication_v1 import UserInfo
from extender.kubernetes.externaldata_v1beta1 import API_VERSION, Item, ProviderRequest, encode_items
from extender.kubernetes.pod_templates import KubernetesObject, node_of, pod_of
from extender.kubernetes.reported_v1 import NamedPod
from extender.outlets.explaining import PodExplainer
from extender.outlets.pod_resolver import PodResolver
from extender.placement.facts import Pending, PodImage, RunsOn, Unknown, fact_of
from extender.reports.explanation import Subject
from extender.resolver.image_cache import ImageQuery
from extender.server.authenticated import RefusedCaller
from extender.turns import Interest, TurnLost, Turns, set_interest

T = TypeVar("T")

SOURCE = "the memory of the service"
GATEKEEPER = UserInfo(username="system:multiarch-extender:gatekeeper")
"""Who shows a certificate of the authority that is trusted for Gatekeeper; `system:` is no name that people have."""
_MOST_IMAGE = 1024  # characters; references that can be pulled have fewer than 800
_MOST_IMAGES = 64  # of one request; nearly all pods have fewer than ten
_SHOWN_CHARACTERS = 200  # of why a body cannot be read, which may quote the name of a field
# An image that is not fresh counts for so long at least. So a user has 128 of them looked up in a second at most.
_LOOKUP_SECONDS = 1.0
_LOOKUPS = declare_budget(
    "outlets.facts.lookups",
    unit="images that callers have looked up, by user, each for a second at least",
    total=256,
    most_each=128,
    why="two questions about the most images; 1,000 a second tripled the latency of reviews",
)
_PER_SECOND = 100.0
_QUESTIONS = declare_budget(
    "outlets.facts.questions",
    unit="questions with a token that begin at once, others wait",
    total=64,
    most_each=64,
    why=f"one for each connection; {_PER_SECOND:g} begin in a second, since each takes 0.4 ms of processor time, even "
    "one that is refused, and 1,500 a second doubled the latency of reviews; addresses take turns",
)
_OBJECT = msgspec.json.Decoder(KubernetesObject)
_POD = msgspec.json.Decoder(NamedPod)
_PROVIDER_REQUEST = msgspec.json.Decoder(ProviderRequest)


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


class AskedImages(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a question about several images; `namespace` as in that about one."""

    images: tuple[str, ...]
    namespace: str = ""


_ASKED_IMAGES = msgspec.json.Decoder(AskedImages)


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
        clock: Callable[[], float],
    ) -> None:
        """`clock` gives monotonic seconds."""
        self._explainer = explainer
        self._pod_resolver = pod_resolver
        self._access = access
        self._platforms = platforms
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._questions = Turns(_QUESTIONS, clock, per_second=_PER_SECOND)
        self._lookups = Budget(_LOOKUPS)

    async def identify(self, token: str, address: str) -> UserInfo | None:
        """Whose the token is, when it is the turn of `address`; None if it is nobody's.

        Raises:
            RefusedCaller: too many tokens are being reviewed.
            ClusterError: the cluster could not be asked.
        """
        async with _refusing_when_busy():
            set_interest(Interest(address, self._clock()))
            async with self._questions.turn():
                pass  # it is how many begin that is limited
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
        raw_pod = msgspec.json.encode(pod_of(manifest))
        subject = Subject(kind="Pod", name=name, namespace=namespace, pod=_POD.decode(raw_pod), raw_pod=raw_pod)
        told = self._explainer.from_memory(subject, self._platforms())
        return msgspec.json.encode(msgspec.structs.replace(told, source=SOURCE, node_name=node_of(manifest)))

    async def facts(self, user: UserInfo, query: Mapping[str, str]) -> bytes:
        """The facts of `image`, looked up if memory does not have them. `namespace` is where the caller may get pods.

        Raises:
            RefusedCaller: the caller may get pods neither everywhere nor in the namespace.
            ClusterError: the cluster could not be asked.
        """
        (reference,) = _wanted({key: query[key] for key in query if key != "namespace"}, "image")
        keyring = await self._keyring_for(user, query.get("namespace", ""))
        [found] = await self._look_up(user, [reference], keyring)
        return msgspec.json.encode(found)

    async def facts_of_many(self, user: UserInfo, body: bytes) -> bytes:
        """The facts of each image of an `AskedImages`, in order, as Kyverno's service calls ask by POST.

        Raises:
            RefusedCaller: as `facts`, or the body is another.
            ClusterError: as `facts`.
        """
        requested = _decode(_ASKED_IMAGES, body, 'send {"images": ["debian:12"]}')
        keyring = await self._keyring_for(user, requested.namespace)
        return msgspec.json.encode({"images": await self._look_up(user, requested.images, keyring)})

    async def provide(self, user: UserInfo, body: bytes) -> bytes:
        """The facts of each key of a ProviderRequest; what is not known is an item's error, with the cause.

        `user` is GATEKEEPER, or one who may get the pods of every namespace and so is told what the operator's
        credentials open.

        Raises:
            RefusedCaller: as `facts_of_many`.
            ClusterError: as `facts`.
        """
        requested = _decode(_PROVIDER_REQUEST, body, f"send a ProviderRequest of {API_VERSION}")
        if requested.api_version != API_VERSION or requested.kind != "ProviderRequest":
            what = f"{requested.kind[:40]!r} of {requested.api_version[:80]!r}"
            raise RefusedCaller(400, f"the body is {what}; send a ProviderRequest of {API_VERSION}")
        keyring = _PUBLIC if user is GATEKEEPER else await self._keyring_for(user, "")
        found = await self._look_up(user, requested.request.keys, keyring)
        return encode_items(tuple(map(_item, found)))

    async def _keyring_for(self, user: UserInfo, namespace: str) -> JoinedKeyring:
        """What is told to the user is what these credentials open. Raises as `facts`."""
        if await self._may(user, "", ""):
            return JoinedKeyring((self._pod_resolver.keyring,), tenant=UNAUTHENTICATED)
        if not namespace:
            raise RefusedCaller(403, f"{user.username} may not get pods in every namespace; name one where that is so")
        await self._require(user, namespace, "")
        return _PUBLIC

    async def _look_up(self, user: UserInfo, references: Sequence[str], keyring: JoinedKeyring) -> list[ImageFacts]:
        if len(references) > _MOST_IMAGES:
            raise RefusedCaller(400, f"{len(references)} images are asked about; give {_MOST_IMAGES} at most")
        if any(len(reference) > _MOST_IMAGE for reference in references):
            raise RefusedCaller(400, f"an image has more than {_MOST_IMAGE} characters")
        images = [ImageQuery(reference) for reference in references]
        resolver = self._pod_resolver.resolver
        due = sum(resolver.cache.fresh([image], keyring) is None for image in images)
        refusal = f"{due} images are to be looked up, and too many others are; try again"
        with _part_of(self._lookups, user, due, _LOOKUP_SECONDS, refusal):
            async with _refusing_when_busy(), self._access.turn(user):
                await resolver.resolve_all(images, keyring, self._wait_seconds)
        return [_facts(image.reference, resolver.evidence(image, keyring)) for image in images]

    async def _require(self, user: UserInfo, namespace: str, name: str) -> None:
        if not await self._may(user, namespace, name):
            where = f"in namespace {namespace}" if namespace else "in every namespace; name one where that is so"
            which = f"pod {namespace}/{name}" if name else f"pods {where}"
            raise RefusedCaller(403, f"{user.username} may not get {which}")

    async def _may(self, user: UserInfo, namespace: str, name: str) -> bool:
        async with _refusing_when_busy():
            return await self._access.may_get_pod(user, namespace, name)


_PUBLIC = JoinedKeyring((), tenant=UNAUTHENTICATED)


@contextlib.contextmanager
def _part_of(budget: Budget, user: UserInfo, number: int, seconds: float, refusal: str) -> Iterator[None]:
    """Holds so much of the budget for the user, for so many seconds at least. Raises RefusedCaller."""
    if number and not budget.take(user.username, number):
        raise RefusedCaller(503, refusal)
    loop = asyncio.get_running_loop()
    ends = loop.time() + seconds
    try:
        yield
    finally:
        if number:
            loop.call_at(max(ends, loop.time()), budget.give_back, user.username, number)


@contextlib.asynccontextmanager
async def _refusing_when_busy() -> AsyncIterator[None]:
    try:
        yield
    except (AccessBusy, TurnLost) as exc:
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


def _decode(decoder: msgspec.json.Decoder[T], body: bytes, remedy: str) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise RefusedCaller(400, f"the body cannot be read: {str(exc)[:_SHOWN_CHARACTERS]}; {remedy}") from exc


def _item(found: ImageFacts) -> Item:
    if found.state == "known":
        return Item(found.image, value=msgspec.Raw(msgspec.json.encode(found)))
    return Item(found.image, error=f"{found.state}: {found.cause}: {found.detail}")


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
