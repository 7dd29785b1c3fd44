"""Looks up what the audit goes by: the answer for each image of workloads, what nodes run of them, and newer tags.

Lookups use the service's own resolver, cache and store, so that an audit that was interrupted goes on from there.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

from extender.cli.lookups import side_by_side
from extender.credentials.keyring import Keyring
from extender.errors import ExtenderError, InvalidReference, RegistryDenied
from extender.fetcher.messages import Look
from extender.images.content import Cause, Content, Failure
from extender.images.platform import Compatibility, Platform, parse_platform, runs_on
from extender.images.reference import ImageReference, parse_reference
from extender.images.tags import newer_tags, parse_tag
from extender.kubernetes.core_v1 import Pod, PodSpec
from extender.kubernetes.meta_v1 import ObjectMeta
from extender.placement.facts import PodImage
from extender.reports.audit_findings import ImageEvidence, RunningEvidence
from extender.reports.audit_report import NewerTag
from extender.reports.running_containers import RunningContainer, other_name
from extender.reports.workload_reports import Workload
from extender.resolver.image_cache import ImageQuery, Target
from extender.resolver.pod_resolver import PodResolver
from extender.turns import OPERATOR

_WAIT_SECONDS = 120.0  # for one lookup: its turn at a host that 63 others want, and its requests
_MOST_TAG_LOOKUPS = 12  # of one image: the newest tag, and a search among 2,000 others
_NONE_NEWER = "none of the {} tags is a newer version"
_INTERRUPTED = Failure(Cause.LOOKING_UP, "the audit was interrupted before it was looked up")
_ENDLESS = Failure(Cause.LOOKING_UP, f"its lookup did not end within {_WAIT_SECONDS:g} s")


FetchTags = Callable[[Look], Awaitable[list[str]]]


class ImageLookups:
    """Looks up the images of workloads side by side, until it is stopped."""

    def __init__(self, pod_resolver: PodResolver, fetch_tags: FetchTags, on_done: Callable[[str], None]) -> None:
        """`fetch_tags` returns the tags of the image's repository. `on_done` is called with each image looked up."""
        self._pod_resolver = pod_resolver
        self._fetch_tags = fetch_tags
        self._on_done = on_done
        self._stopped = asyncio.Event()
        self._found: dict[tuple[object, ...], ImageEvidence] = {}
        self._keyrings: dict[str, Keyring] = {}  # that an image was seen with, by its name

    def stop(self) -> None:
        """Ends the lookups: those that have not ended stay unknown."""
        self._stopped.set()

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    def count(self, workloads: Sequence[Workload]) -> int:
        """How many lookups `look_up` makes."""
        return len(self._wanted(_uses(workloads)))

    async def look_up(self, workloads: Sequence[Workload]) -> list[list[ImageEvidence]]:
        """For each workload, in order, what is found for each of its images."""
        await self._look_up_all(self._wanted(_uses(workloads)))
        missing = ImageEvidence(_INTERRUPTED)
        return [
            [self._found.get(_key(image, workload), missing) for image in workload.images] for workload in workloads
        ]

    async def look_up_running(self, workloads: Sequence[Workload]) -> list[RunningEvidence]:
        """What is found for the images that runtimes report of the workloads' containers, after `look_up`.

        One that its registry names by the same digest is not asked for again.
        """
        running = [
            (workload, container, pods, self._reported_image(workload, container))
            for workload in workloads
            for container, pods in workload.running.items()
        ]
        await self._look_up_all(self._wanted((image, workload) for workload, _, _, image in running if image))
        return [
            RunningEvidence(
                workload,
                container,
                pods,
                named=self._evidence(container.image, workload).answer,
                reported=self._evidence(image, workload).answer if image else None,
            )
            for workload, container, pods, image in running
        ]

    def _reported_image(self, workload: Workload, container: RunningContainer) -> PodImage | None:
        """What the runtime reports, if it is to be looked up besides."""
        named = self._evidence(container.image, workload)
        name = other_name(container, named.answer, named.digest)
        return PodImage(name) if name else None

    def _evidence(self, image: PodImage, workload: Workload) -> ImageEvidence:
        return self._found.get(_key(image, workload), ImageEvidence(None))

    async def _look_up_all(self, wanted: Mapping[tuple[object, ...], tuple[PodImage, Workload]]) -> None:
        async def one(key: tuple[object, ...]) -> None:
            image, workload = wanted[key]
            self._found[key] = await self._look_up_one(image, workload)
            self._on_done(image.reference)

        await side_by_side(wanted, one, self._stopped)

    async def find_newer(
        self, wanted: Sequence[tuple[str, str]], compatibility: Compatibility
    ) -> dict[tuple[str, str], NewerTag]:
        """For each image and platform the first newer tag that runs there; those that `stop` cut off are left out.

        The newest tag is looked at first, and the first one that has the platform is then searched by halves: a few
        lookups for hundreds of tags. That supposes that a platform which was gained is not lost again.
        """
        found: dict[tuple[str, str], NewerTag] = {}
        repositories: dict[str, asyncio.Task[list[str] | Failure]] = {}

        async def one(key: tuple[str, str]) -> None:
            reference, platform = key
            found[key] = await self._first_newer(reference, parse_platform(platform), compatibility, repositories)
            self._on_done(reference)

        try:
            await side_by_side(wanted, one, self._stopped)
        finally:
            for task in repositories.values():
                task.cancel()
            await asyncio.gather(*repositories.values(), return_exceptions=True)
        return found

    def _wanted(self, uses: Iterable[tuple[PodImage, Workload]]) -> dict[tuple[object, ...], tuple[PodImage, Workload]]:
        return {
            _key(image, workload): (image, workload)
            for image, workload in uses
            if _key(image, workload) not in self._found
        }

    async def _look_up_one(self, image: PodImage, workload: Workload) -> ImageEvidence:
        query = ImageQuery(image.reference, image.pull_policy == "Always")
        keyring = self._keyring_of(workload)
        (answer,) = await self._pod_resolver.resolver.resolve_all([query], keyring, _WAIT_SECONDS)
        if not isinstance(answer, Content):
            return ImageEvidence(answer or _ENDLESS)
        digest = self._pod_resolver.resolver.evidence(query, keyring).digest
        self._keyrings.setdefault(image.reference, keyring)
        return ImageEvidence(answer, digest)

    def _keyring_of(self, workload: Workload) -> Keyring:
        namespace = workload.key.namespace
        pod = Pod(ObjectMeta(namespace=namespace), PodSpec(image_pull_secrets=workload.spec.image_pull_secrets))
        overrides = self._pod_resolver.overrides_of(pod, namespace)
        question = self._pod_resolver.question(pod, namespace, overrides, may_read=True)
        return question.keyring.of(OPERATOR)  # all lookups are the caller's own

    async def _first_newer(
        self,
        reference: str,
        platform: Platform,
        compatibility: Compatibility,
        repositories: dict[str, asyncio.Task[list[str] | Failure]],
    ) -> NewerTag:
        try:
            parsed = parse_reference(reference)
        except InvalidReference as exc:
            return NewerTag(str(platform), None, str(exc))
        if not isinstance(self._pod_resolver.resolver.cache.references.target_of(reference), Target):
            return NewerTag(str(platform), None, "placement.images says what it runs on, so no registry is asked")
        own = parse_tag(parsed.tag)
        if own is None:
            why = "it is named by digest alone" if not parsed.tag else f"its tag {parsed.tag} states no version"
            return NewerTag(str(platform), None, why)
        keyring = self._keyrings.get(reference, self._pod_resolver.keyring)
        if parsed.repository not in repositories:
            repositories[parsed.repository] = asyncio.create_task(self._list_tags(parsed, keyring))
        tags = await asyncio.shield(repositories[parsed.repository])
        if isinstance(tags, Failure):
            return NewerTag(str(platform), None, f"its tags cannot be listed: {tags.detail}")
        newest = ""
        for architecture in ("", platform.architecture) if own.architecture else ("",):
            newer = newer_tags(parsed.tag, tags, architecture)

            async def has(index: int, newer: Sequence[str] = newer) -> bool:
                named = str(ImageReference(parsed.domain, parsed.path, newer[index], ""))
                (answer,) = await self._pod_resolver.resolver.resolve_all([ImageQuery(named)], keyring, _WAIT_SECONDS)
                return isinstance(answer, Content) and runs_on(answer.platforms, platform, compatibility)

            if newer and (first := await _first(len(newer), has)) is not None:
                return NewerTag(str(platform), newer[first])
            newest = newest or (newer[-1] if newer else "")
        why = f"the newest tag, {newest}, does not run there either" if newest else _NONE_NEWER.format(len(tags))
        return NewerTag(str(platform), None, why)

    async def _list_tags(self, reference: ImageReference, keyring: Keyring) -> list[str] | Failure:
        """The tags as the credentials see them with which the image was seen, or else the keyring's others."""
        resolver = self._pod_resolver.resolver
        target = resolver.cache.references.target_of(str(reference))
        assert isinstance(target, Target)  # noqa: S101 - a name with a tag
        access = await resolver.access_of(target, keyring)
        look = Look(tenant=OPERATOR, reference=reference, kubelet_name=target.reference, access=access)
        try:
            return await self._fetch_tags(look)
        except RegistryDenied:
            return Failure(Cause.DENIED, f"{reference.domain} denies it")
        except ExtenderError as exc:
            return Failure(Cause.UNAVAILABLE, str(exc))


async def _first(number: int, has: Callable[[int], Awaitable[bool]]) -> int | None:
    """The first index below `number` that has it, as if all after it had it too; None if the last one has it not."""
    lowest, highest = 0, number - 1
    if not await has(highest):
        return None
    for _ in range(_MOST_TAG_LOOKUPS):
        if lowest == highest:
            break
        middle = (lowest + highest) // 2
        if await has(middle):
            highest = middle
        else:
            lowest = middle + 1
    return highest


def _uses(workloads: Sequence[Workload]) -> Iterator[tuple[PodImage, Workload]]:
    return ((image, workload) for workload in workloads for image in workload.images)


def _key(image: PodImage, workload: Workload) -> tuple[object, ...]:
    """What an answer depends on: the image, and the credentials of the namespace where it is used."""
    secrets = workload.spec.image_pull_secrets
    return (image.reference, image.pull_policy == "Always", workload.key.namespace if secrets else "", secrets)
