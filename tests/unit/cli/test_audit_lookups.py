"""The credentials of an audit: newer tags are looked for with those with which an image was seen."""

import pytest

from extender.cli.audit_lookups import ImageLookups
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


@pytest.mark.parametrize("hides", [False, True])
@pytest.mark.parametrize("is_first", [True, False])
async def test_newer_tags_use_the_credentials_of_the_evidence(*, hides: bool, is_first: bool) -> None:
    """Neither those of another namespace, nor another login of the same pod that is tried before it."""
    clock, registry = Clock(), Registry(hides=hides)
    resolver = Resolver(registry, size=100, tag_seconds=900, stale_seconds=3600, clock=clock, random=lambda: 0.0)
    pod_resolver = PodResolver(
        resolver,
        keyring_of(),
        Policy(),
        lambda _: None,
        lambda: None,
        PullSecrets(Secrets().read_logins, key=KEY, clock=clock),
    )
    lookups = ImageLookups(pod_resolver, registry.list_tags, lambda _: None)
    workloads = [workload("right", "other", "pull"), workload("wrong", "pull")]
    found = await lookups.look_up(workloads if is_first else workloads[::-1])
    assert [isinstance(each[0].answer, Content) for each in found] == [is_first, not is_first]
    newer = await lookups.look_for_newer([(APP, "linux/arm64")], Compatibility())
    assert newer[APP, "linux/arm64"].tag == "1.1"
    assert registry.listed == ["right-pull"]
    await resolver.close()
