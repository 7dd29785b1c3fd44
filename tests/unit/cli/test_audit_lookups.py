"""The credentials of an audit: newer tags are looked for with those with which an image was seen."""

import pytest

from extender.cli.audit_lookups import FetchTags, ImageLookups
from extender.credentials.keyring import Credential
from extender.credentials.logins import Login
from extender.credentials.pull_secrets import PullSecrets
from extender.fetcher.messages import Look
from extender.images.content import Content
from extender.images.platform import Compatibility, parse_platform
from extender.kubernetes.core_v1 import LocalObjectReference
from extender.kubernetes.reported_v1 import ReportedSpec
from extender.placement.facts import PodImage
from extender.placement.policy import Policy
from extender.reports.workload_reports import ImageUse, Workload, WorkloadKey
from extender.resolver.pod_resolver import PodResolver
from extender.resolver.resolver import Resolver
from testbed.clock import Clock
from tests.unit.resolver.fake_registry import FakeRegistry, keyring_of

KEY = b"k" * 32
APP, NEWER = "ghcr.io/team/app:1.0", "ghcr.io/team/app:1.1"
ARM64 = parse_platform("linux/arm64")
SECRETS = {("wrong", "pull"): "no", ("right", "pull"): "yes", ("right", "other"): "no"}


class Secrets:
    """Pull secrets: a login for the registry in each."""

    async def read_logins(self, namespace: str, name: str) -> tuple[Login, ...]:
        return (Login("ghcr.io", f"{namespace}-{name}", SECRETS[namespace, name]),)


class Registry(FakeRegistry):
    """Lists tags for its readers alone, and records with which credentials they were asked for."""

    def __init__(self, *, hides: bool) -> None:
        super().__init__()
        self.hides = hides
        self.readers = {"ghcr.io/team/app": {"right-pull"}}
        self.listed: list[str] = []
        self.push(APP, "linux/amd64")
        self.push(NEWER, "linux/amd64", "linux/arm64")

    async def list_tags(self, look: Look) -> list[str]:
        async def ask(credential: Credential) -> list[str]:
            self.listed.append(credential.username)
            await self._admit("GET", look.reference, credential)
            return ["1.0", "1.1"]

        return await self.looker.ask(look, ask)


def workload(namespace: str, *secrets: str) -> Workload:
    spec = ReportedSpec(image_pull_secrets=tuple(LocalObjectReference(name) for name in secrets))
    uses = (ImageUse(image=PodImage(APP), used_as="container", name="app"),)
    return Workload(key=WorkloadKey(namespace, "Deployment", "app"), spec=spec, uses=uses)


def lookups_of(registry: FakeRegistry, fetch_tags: FetchTags) -> tuple[ImageLookups, Resolver]:
    """The lookups, and the resolver to close."""
    clock = Clock()
    resolver = Resolver(registry, size=100, tag_seconds=900, stale_seconds=3600, clock=clock, random=lambda: 0.0)
    pull_secrets = PullSecrets(Secrets().read_logins, key=KEY, clock=clock)
    pod_resolver = PodResolver(resolver, keyring_of(), Policy(), lambda _: None, lambda: None, pull_secrets)
    return ImageLookups(pod_resolver, fetch_tags, lambda _: None), resolver


@pytest.mark.parametrize("hides", [False, True])
@pytest.mark.parametrize("is_first", [True, False])
async def test_newer_tags_use_the_credentials_of_the_evidence(*, hides: bool, is_first: bool) -> None:
    """Neither those of another namespace, nor another login of the same pod that is tried before it."""
    registry = Registry(hides=hides)
    lookups, resolver = lookups_of(registry, registry.list_tags)
    workloads = [workload("right", "other", "pull"), workload("wrong", "pull")]
    found = await lookups.look_up(workloads if is_first else workloads[::-1])
    assert [isinstance(each[0].answer, Content) for each in found] == [is_first, not is_first]
    newer = await lookups.find_newer([(APP, "linux/arm64")], Compatibility())
    assert newer[APP, "linux/arm64"].tag == "1.1"
    assert registry.listed == ["right-pull"]
    await resolver.close()


@pytest.mark.parametrize(
    ("platforms", "found"),
    [
        ({"v1.2.3": ("linux/amd64", "linux/arm64"), "v1.2.3-arm64": ("linux/arm64",)}, "v1.2.3"),
        ({"v1.2.3": ("linux/amd64",), "v1.2.3-arm64": ("linux/arm64",)}, "v1.2.3-arm64"),
        ({"v1.2.3": ("linux/amd64",), "v1.3.0_linux_arm64": ("linux/arm64",)}, "v1.3.0_linux_arm64"),
        ({"v1.2.3-arm64": ("linux/amd64",), "v1.2.3-s390x": ("linux/arm64",)}, None),
        ({}, None),
    ],
)
async def test_beside_a_tag_of_an_architecture_are_the_one_without_it_and_that_of_the_platform(
    platforms: dict[str, tuple[str, ...]], found: str | None
) -> None:
    registry = FakeRegistry()
    for tag, has in platforms.items():
        registry.push(f"ghcr.io/team/app:{tag}", *has)

    async def tags(_: Look) -> list[str]:
        return ["v1.2.3-amd64", *platforms]

    lookups, resolver = lookups_of(registry, tags)
    asked = "ghcr.io/team/app:v1.2.3-amd64", "linux/arm64"
    [newer] = (await lookups.find_newer([asked], Compatibility())).values()
    assert newer.tag == found
    assert bool(newer.why) is (found is None)
    await resolver.close()
