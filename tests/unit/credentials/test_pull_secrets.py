"""The secrets a pod names: what they open, how old they may be, and what is left of them in memory."""

import asyncio
import json
import sys
import tracemalloc
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from extender.credentials.keyring import Keyring, credential_id_of
from extender.credentials.logins import InvalidLogins, Login, decode_docker_config
from extender.credentials.pull_secrets import KEEP_SECONDS, MOST_LOGINS, MOST_NAMES, PullSecrets
from extender.errors import ClusterError
from extender.images.reference import parse_reference
from testbed.clock import Clock
from tests.unit.credentials.conftest import settle

KEY = b"k" * 32
APP = parse_reference("quay.io/team/app:1")
HUB = parse_reference("redis")


class Cluster:
    """A cluster whose secrets a test writes, and the time; every reading is counted, and can be held."""

    def __init__(self) -> None:
        self.secrets: dict[tuple[str, str], tuple[Login, ...] | Exception] = {}
        self.reads: list[tuple[str, str]] = []
        self.open = asyncio.Event()
        self.open.set()
        clock = Clock()
        self.advance = clock.advance
        self.pull_secrets = PullSecrets(self.read_logins, key=KEY, clock=clock)

    def write(self, name: str, *logins: tuple[str, str, str], namespace: str = "shop") -> None:
        self.secrets[namespace, name] = tuple(Login(*login) for login in logins)

    async def read_logins(self, namespace: str, name: str) -> tuple[Login, ...]:
        self.reads.append((namespace, name))
        await self.open.wait()
        found = self.secrets.get((namespace, name), ())
        if isinstance(found, Exception):
            raise found
        return found

    def keyring(self, *names: str, namespace: str = "shop") -> Keyring:
        return self.pull_secrets.keyring(Keyring(), namespace, names)


async def names_for(ring: Keyring, refresh: bool = False) -> list[str]:
    return [credential.username for credential in await ring.load(APP, refresh=refresh)]


@pytest.fixture
async def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
async def fire_timers(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Calls what is to be called later, now; what that wants to be called later waits for the next time."""
    loop, timers = asyncio.get_running_loop(), list[Callable[[], None]]()
    really_call_later = loop.call_later

    def call_later(seconds: float, callback: Callable[..., None], *args: object) -> asyncio.TimerHandle:
        if not seconds:
            return really_call_later(seconds, callback, *args)
        timers.append(callback)
        return asyncio.TimerHandle(loop.time() + seconds, callback, (), loop)

    def fire() -> None:
        due = timers.copy()
        timers.clear()
        assert due
        for callback in due:
            callback()

    monkeypatch.setattr(loop, "call_later", call_later)
    return fire


async def test_secrets_are_one_keyring_most_specific_first(cluster: Cluster) -> None:
    """The kubelet sorts all secrets' keys together; logins of one key keep the order of the pod's list.

    Missing and unnamed secrets are left out; those of another namespace are others.
    """
    cluster.write("a", ("quay.io", "wide-a", "x"), ("ghcr.io", "other", "x"))
    cluster.write("b", ("quay.io/team", "narrow", "x"), ("quay.io", "wide-b", "x"))
    assert await names_for(cluster.keyring("a", "", "gone", "b", "a")) == ["narrow", "wide-a", "wide-b"]
    assert cluster.reads == [("shop", "a"), ("shop", "gone"), ("shop", "b")]
    assert await names_for(cluster.keyring("b", "a")) == ["narrow", "wide-b", "wide-a"]
    assert await names_for(cluster.keyring("a", namespace="bank")) == []
    assert cluster.keyring("a").identity != cluster.keyring("a", namespace="bank").identity


async def test_a_malformed_secret_costs_the_pod_all_its_secrets_and_is_said_once(cluster: Cluster) -> None:
    """The kubelet makes no keyring of them at all; other pods of the namespace keep theirs."""
    cluster.write("good", ("quay.io", "ann", "x"))
    cluster.secrets["shop", "bad"] = InvalidLogins("it is no Docker configuration")
    with capture_logs() as lines:
        assert await names_for(cluster.keyring("good", "bad")) == []
        assert await names_for(cluster.keyring("good")) == ["ann"]
        cluster.advance(KEEP_SECONDS)
        assert await names_for(cluster.keyring("good", "bad")) == []
    assert [(line["event"], line["why"]) for line in lines] == [
        ("secret.malformed", "bad: it is no Docker configuration")
    ]


async def test_secrets_after_too_many_logins_are_left_out_and_said_once(cluster: Cluster) -> None:
    """Those before them serve the pod, and the warning has no login in it. Those after them are not even read."""
    for name in "abcdefgh":
        cluster.write(name, *(("quay.io", f"{name}{number}", "hunter2") for number in range(MOST_LOGINS // 4)))
    ring = cluster.keyring(*"abcdefgh")
    with capture_logs() as lines:
        await names_for(ring)
        assert [name for _, name in cluster.reads] == [*"abcde"]
        cluster.advance(KEEP_SECONDS)
        found = await names_for(ring)
    assert len(found) == MOST_LOGINS
    assert {username[:1] for username in found} == {*"abcd"}
    assert len(ring.own_ids_for(APP)) == MOST_LOGINS
    assert lines == [
        {
            "event": "secret.truncated", "log_level": "warning", "namespace": "shop", "secret": "e",
            "kept": MOST_LOGINS, "left_out": 4,
        }
    ]  # fmt: skip


async def test_scopes_are_known_after_the_first_loading(cluster: Cluster) -> None:
    """For every pod with the same secrets, and long after the passwords are forgotten."""
    cluster.write("pull", ("quay.io", "ann", "secret"))
    assert cluster.keyring("pull").own_ids_for(APP) == ()
    assert cluster.keyring("pull").is_due()
    assert cluster.reads == []
    await cluster.keyring("pull").load(APP)
    cluster.advance(10_000)
    assert cluster.keyring("pull").own_ids_for(APP) == (credential_id_of("ann", "secret", key=KEY),)
    assert cluster.keyring("pull").own_ids_for(HUB) == ()
    assert len(cluster.reads) == 1


async def test_a_reading_is_used_for_half_a_minute(cluster: Cluster) -> None:
    """Then the next lookup reads again: a corrected secret is used within that time, and a deleted one no more."""
    ring = cluster.keyring("pull")
    cluster.write("pull", ("quay.io", "wrong", "x"))
    await ring.load(APP)
    cluster.write("pull", ("quay.io", "right", "x"))
    cluster.advance(KEEP_SECONDS - 0.1)
    assert not ring.is_due()
    assert await names_for(ring) == ["wrong"]
    cluster.advance(0.1)
    assert ring.is_due()
    assert await names_for(ring) == ["right"]
    assert not ring.is_due()
    del cluster.secrets["shop", "pull"]
    cluster.advance(KEEP_SECONDS)
    assert await names_for(ring) == []
    assert ring.own_ids_for(APP) == ()


async def test_a_denied_secret_is_read_again_at_once_unless_it_was_just_read(cluster: Cluster) -> None:
    """A hundred denied images of one secret are no hundred readings."""
    ring = cluster.keyring("pull")
    cluster.write("pull", ("quay.io", "old", "x"))
    await ring.load(APP)
    cluster.advance(6)
    cluster.write("pull", ("quay.io", "new", "x"))
    assert await names_for(ring) == ["old"]
    assert await names_for(ring, refresh=True) == ["new"]
    for _ in range(100):
        await names_for(ring, refresh=True)
    assert len(cluster.reads) == 2


async def test_lookups_at_the_same_time_share_a_reading(cluster: Cluster) -> None:
    cluster.write("pull", ("quay.io", "ann", "x"))
    cluster.open.clear()
    loads = [asyncio.create_task(cluster.keyring("pull").load(APP)) for _ in range(50)]
    await asyncio.sleep(0)
    cluster.open.set()
    assert {len(found) for found in await asyncio.gather(*loads)} == {1}
    assert len(cluster.reads) == 1


async def test_an_api_server_that_fails_takes_nothing_away(cluster: Cluster, fire_timers: Callable[[], None]) -> None:
    """Scopes stay, and it is asked again after five seconds; no login is invented."""
    ring = cluster.keyring("pull")
    cluster.write("pull", ("quay.io", "ann", "x"))
    await ring.load(APP)
    credential_ids = ring.own_ids_for(APP)
    fire_timers()
    cluster.advance(KEEP_SECONDS)
    fire_timers()
    cluster.secrets["shop", "pull"] = ClusterError("HTTP 500")
    with capture_logs() as lines:
        assert await names_for(ring) == []
    assert [line["event"] for line in lines] == ["secret.unread"]
    assert ring.own_ids_for(APP) == credential_ids
    assert ring.is_unread()
    assert not ring.is_due()
    assert await names_for(ring) == []
    assert len(cluster.reads) == 2
    cluster.advance(5)
    assert ring.is_due()
    cluster.write("pull", ("quay.io", "ann", "x"))
    assert await names_for(ring) == ["ann"]
    assert not ring.is_unread()


async def test_a_login_that_was_just_read_serves_while_it_cannot_be_read_again(cluster: Cluster) -> None:
    """Until the half minute is over; and the keyring says that it may lack another."""
    ring = cluster.keyring("pull")
    cluster.write("pull", ("quay.io", "ann", "x"))
    await ring.load(APP)
    cluster.advance(6)
    cluster.secrets["shop", "pull"] = ClusterError("HTTP 500")
    assert await names_for(ring, refresh=True) == ["ann"]
    assert ring.is_unread()
    cluster.advance(KEEP_SECONDS - 6)
    assert ring.is_due()
    assert await names_for(ring) == []


async def test_passwords_are_dropped_when_they_are_too_old_to_be_used(
    cluster: Cluster, fire_timers: Callable[[], None]
) -> None:
    """Nothing that is kept for longer than half a minute holds one."""
    password = "hunter2".upper()  # another object than the constant
    cluster.write("pull", ("quay.io", "ann", password))
    before = sys.getrefcount(password)
    await cluster.keyring("pull").load(APP)
    assert sys.getrefcount(password) > before
    cluster.advance(KEEP_SECONDS)
    fire_timers()
    assert sys.getrefcount(password) == before


async def test_reads_that_hang_for_one_namespace_leave_turns_for_others(cluster: Cluster) -> None:
    """A hundred pods of it name other secrets each; a pod of another namespace waits for none of them."""
    cluster.write("pull", ("quay.io", "ann", "x"), namespace="bank")
    cluster.open.clear()
    hanging = [asyncio.create_task(cluster.keyring(f"pull-{number}").load(APP)) for number in range(100)]
    await settle()
    assert len(cluster.reads) == 4
    cluster.open, hang = asyncio.Event(), cluster.open
    cluster.open.set()
    async with asyncio.timeout(5):
        found = await cluster.keyring("pull", namespace="bank").load(APP)
    assert [credential.username for credential in found] == ["ann"]
    hang.set()
    await asyncio.gather(*hanging)


async def test_a_namespace_of_large_secrets_takes_little_memory(cluster: Cluster) -> None:
    """A pod names 64 secrets of 10,000 entries, of which 256 have long names; then pods of one each."""
    auths: dict[str, object] = {f"h{number}.example.com/{'x' * 600}": {"auth": "YTpi"} for number in range(256)}
    auths |= {f"{number:x}": {} for number in range(10_000)}
    document = json.dumps({"auths": auths}, separators=(",", ":")).encode()

    async def read_logins(_namespace: str, _name: str) -> tuple[Login, ...]:
        return decode_docker_config(document, most=256).logins

    cluster.pull_secrets = PullSecrets(read_logins, key=KEY, clock=Clock())
    names = [f"pull-{number}" for number in range(MOST_NAMES)]
    tracemalloc.start()
    try:
        await cluster.keyring(*names).load(APP)
        await asyncio.gather(*(cluster.keyring(name).load(APP) for name in names[:16]))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 24 << 20


async def test_what_one_image_is_tried_with_is_bounded(cluster: Cluster) -> None:
    """A lookup holds the passwords while it asks: 256 KiB of them at most, the first ones, of so many secrets."""
    cluster.write("pull", *(("quay.io", f"user-{number}", "p" * 100_000) for number in range(10)))
    assert await names_for(cluster.keyring("pull", *(f"s{number}" for number in range(10_000)))) == ["user-0", "user-1"]
    assert len(cluster.reads) == MOST_NAMES
