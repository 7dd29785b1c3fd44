"""In which order credentials are tried, what each answer says of them, and what is not asked for twice."""

import json
from functools import partial
from pathlib import Path

import msgspec
import pytest

from extender.credential_sources import Source
from extender.credentials.docker_config import read_docker_config
from extender.credentials.keyring import ANONYMOUS, NO_OPERATOR, Credential, CredentialId
from extender.credentials.operator_keyring import OperatorKeyring
from extender.credentials.providers import CredentialsUnavailable, ProvidedCredentials, ProviderLogins, SourcesFile
from extender.errors import ManifestNotFound, RegistryDenied, RegistryError, RegistryThrottled, RegistryUnreachable
from extender.fetcher.looker import Looker
from extender.fetcher.messages import Failed, Look, PullAccess, SeenImage
from extender.images.content import Cause
from extender.images.failures import UNREAD
from extender.images.reference import parse_reference
from extender.watched_files import FileSetting, WatchedFiles
from testbed.clock import Clock
from tests.unit.resolver.fake_registry import OTHER, TENANT, FakeRegistry
from tests.unit.resolver.operator_logins import LABEL

APP, SECOND = "ghcr.io/team/app:1", "ghcr.io/team/app:2"
REPOSITORY = "ghcr.io/team/app"


def look(name: str = APP, *logins: Credential, first: CredentialId = NO_OPERATOR) -> Look:
    image = parse_reference(name)
    return Look(tenant="shop", reference=image, kubelet_name=image, access=PullAccess(logins, first), seconds=20.0)


def users(registry: FakeRegistry) -> list[str]:
    return list(dict.fromkeys(user for _, _, user in registry.requests))


@pytest.fixture
async def registry() -> FakeRegistry:
    opened = FakeRegistry()
    opened.push(APP, "linux/arm64")
    opened.use_operator_logins({"ghcr.io/team": ("narrow", "p"), "ghcr.io": ("wide", "p")})
    return opened


async def test_the_pods_logins_come_first_then_the_operators_then_none(registry: FakeRegistry) -> None:
    registry.readers[REPOSITORY] = {"anonymous"}
    seen = await registry.look(look(APP, OTHER, TENANT))
    assert users(registry) == ["other", "tenant", "narrow", "wide", "anonymous"]
    assert isinstance(seen, SeenImage)
    assert (seen.by, seen.label) == (ANONYMOUS.id, "")
    assert seen.denied == ("other", "tenant", registry.operator_id)


@pytest.mark.parametrize(
    ("reader", "first", "tried"),
    [
        ("tenant", "tenant", ["tenant"]),
        ("anonymous", "anonymous", ["anonymous"]),
        ("wide", "operator", ["narrow", "wide"]),
        ("other", "tenant", ["tenant", "other"]),
    ],
)
async def test_what_opened_it_before_is_tried_first(
    registry: FakeRegistry, reader: str, first: str, tried: list[str]
) -> None:
    registry.readers[REPOSITORY] = {reader}
    before = registry.operator_id if first == "operator" else CredentialId(first)
    assert isinstance(await registry.look(look(APP, OTHER, TENANT, first=before)), SeenImage)
    assert users(registry) == tried


async def test_registries_have_the_questions_time_for_all_credentials_together(registry: FakeRegistry) -> None:
    """However many logins a pod names, and however long each request may take."""
    registry.readers[REPOSITORY] = set()
    registry.open.clear()
    question = msgspec.structs.replace(look(APP, OTHER, TENANT), seconds=0.05)
    failed = await registry.look(question)
    assert isinstance(failed, Failed)
    assert (failed.failure.cause, failed.why) == (Cause.UNAVAILABLE, "ghcr.io did not answer within 0.05 s")
    assert users(registry) == ["other"]


async def test_of_the_operators_logins_the_one_that_opened_the_repository_is_tried_first(
    registry: FakeRegistry,
) -> None:
    """By all names of it; the answer names all of them by one id, and says where the login is from."""
    registry.push(SECOND, "linux/amd64")
    registry.readers[REPOSITORY] = {"wide"}
    seen = await registry.look(look())
    assert isinstance(seen, SeenImage)
    assert (seen.by, seen.label, seen.denied) == (registry.operator_id, LABEL, ())
    registry.requests.clear()
    assert isinstance(await registry.look(look(SECOND)), SeenImage)
    assert users(registry) == ["wide"]


async def test_a_trouble_of_the_registry_ends_the_trying(registry: FakeRegistry) -> None:
    """It says who met it, and what was denied before."""
    registry.readers[REPOSITORY] = set()
    registry.fault = lambda *_: RegistryUnreachable("no") if users(registry)[-1] == "narrow" else None
    failed = await registry.look(look(APP, OTHER))
    assert isinstance(failed, Failed)
    assert failed.failure.cause is Cause.UNAVAILABLE
    assert (failed.by, failed.denied) == (registry.operator_id, ("other",))


async def test_an_account_that_is_throttled_leaves_it_to_the_next(registry: FakeRegistry) -> None:
    """Also to a login that was added since another one had opened the image."""
    registry.fault = lambda *_: RegistryThrottled("later", 17.0) if users(registry)[-1] != "wide" else None
    seen = await registry.look(look(APP, OTHER, first=ANONYMOUS.id))
    assert users(registry) == ["anonymous", "other", "narrow", "wide"]
    assert isinstance(seen, SeenImage)
    assert (seen.by, seen.denied) == (registry.operator_id, ())


@pytest.mark.parametrize(
    ("of_anonymous", "cause"),
    [
        pytest.param(RegistryThrottled("later", 5.0), Cause.THROTTLED, id="throttled"),
        pytest.param(RegistryDenied("no"), Cause.THROTTLED, id="denied"),
        pytest.param(ManifestNotFound("no"), Cause.MISSING, id="missing"),
    ],
)
async def test_an_image_is_throttled_unless_an_account_that_is_not_says_more(
    registry: FakeRegistry, of_anonymous: RegistryError, cause: Cause
) -> None:
    """A denial says nothing of what a throttled account may open; the earliest time counts."""
    late = RegistryThrottled("later", 17.0)
    registry.fault = lambda *_: of_anonymous if users(registry)[-1] == "anonymous" else late
    failed = await registry.look(look(APP, OTHER))
    assert isinstance(failed, Failed)
    assert users(registry) == ["other", "narrow", "wide", "anonymous"]
    is_throttled = isinstance(of_anonymous, RegistryThrottled)
    expected = {Cause.THROTTLED: 5 if is_throttled else 17, Cause.MISSING: None}[cause]
    assert (failed.failure.cause, failed.retry_after) == (cause, expected)
    if cause is Cause.THROTTLED:
        assert failed.by == ("anonymous" if is_throttled else "other")


async def test_every_question_goes_on_to_the_next_credential(registry: FakeRegistry) -> None:
    """As a look does: some registries answer that nothing is there when a login has no access."""
    refusals = {"other": ManifestNotFound("no"), "narrow": RegistryDenied("no"), "wide": RegistryThrottled("later")}
    asked: list[str] = []

    async def ask(credential: Credential) -> str:
        asked.append(credential.username or credential.id)
        if refusal := refusals.get(asked[-1]):
            raise refusal
        return "found"

    assert await registry.looker.ask(look(APP, OTHER), ask) == "found"
    assert asked == ["other", "narrow", "wide", "anonymous"]
    refusals["anonymous"] = RegistryDenied("no")
    with pytest.raises(ManifestNotFound):
        await registry.looker.ask(look(APP, OTHER), ask)
    refusals["other"] = RegistryUnreachable("no")
    asked.clear()
    with pytest.raises(RegistryUnreachable):
        await registry.looker.ask(look(APP, OTHER), ask)
    assert asked == ["other"]


class Provider:
    """Fails, or has one login."""

    source = Source.PROVIDER
    name = principal = "test"

    def __init__(self) -> None:
        self.fails = True
        self.keep_seconds = 60.0

    def serves(self, repository: str) -> bool:
        return True

    async def provide(self, repository: str) -> ProvidedCredentials:
        if self.fails:
            raise CredentialsUnavailable("it is down")
        return ProvidedCredentials((), self.keep_seconds)


async def test_a_denial_tells_nothing_while_a_provider_fails_and_holds_shortly_where_one_may_renew(
    registry: FakeRegistry,
) -> None:
    registry.readers[REPOSITORY] = set()
    provider, clock = Provider(), Clock()
    looker = Looker(registry, OperatorKeyring(clouds=[ProviderLogins(provider, clock=clock)], token_bytes=bytes))
    unread = await looker.look(look())
    provider.fails = False
    clock.advance(10)
    denied = await looker.look(look())
    assert isinstance(unread, Failed)
    assert isinstance(denied, Failed)
    assert (unread.failure, unread.retry_after) == (UNREAD, 10)
    assert (denied.failure.cause, denied.retry_after) == (Cause.DENIED, 30)


async def test_an_answer_that_ends_during_the_look_was_one(registry: FakeRegistry) -> None:
    """A provider that wants nothing kept has given what it has; what it failed with is not made good by another's."""
    registry.readers[REPOSITORY] = set()
    provider, clock = Provider(), Clock()
    provider.fails, provider.keep_seconds = False, 0.0

    def take_time(*_: object) -> None:
        clock.advance(2)

    registry.fault = take_time
    looker = Looker(registry, OperatorKeyring(clouds=[ProviderLogins(provider, clock=clock)], token_bytes=bytes))
    denied = await looker.look(look(APP, OTHER))
    assert isinstance(denied, Failed)
    assert (denied.failure.cause, denied.denied) == (Cause.DENIED, ("other", "anonymous"))


async def test_a_corrected_docker_configuration_is_used_in_the_lookup_that_was_denied(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    registry.readers[REPOSITORY] = {"ann"}
    path = tmp_path / "config.json"

    def write(user: str) -> None:
        path.write_text(json.dumps({"auths": {"ghcr.io": {"username": user, "password": "p"}}}))

    write("bob")
    file = SourcesFile(partial(read_docker_config, str(path)), clock=Clock())
    files = [WatchedFiles.of(FileSetting.DOCKER_CONFIG, [str(path)], file.load)]
    operator = OperatorKeyring(files, token_bytes=bytes)
    before = operator.id
    write("ann")
    seen = await Looker(registry, operator).look(look())
    assert users(registry) == ["bob", "anonymous", "ann"]
    assert isinstance(seen, SeenImage)
    assert seen.by == operator.id != before
    assert seen.label == "the operator's Docker configuration"


async def test_a_login_that_no_server_takes_or_that_the_operator_has_too_is_not_sent(registry: FakeRegistry) -> None:
    long, own = Credential("long", "x" * 40_000, CredentialId("long")), Credential("narrow", "p", CredentialId("own"))
    registry.readers[REPOSITORY] = set()
    await registry.look(look(APP, long, own))
    assert [user for method, _, user in registry.requests if method == "GET"] == ["narrow", "wide", "anonymous"]
