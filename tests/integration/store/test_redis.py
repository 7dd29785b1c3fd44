"""The Redis store against Debian's redis-server: rows, logins, TLS, and a server that dies and comes back."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import quote

import pytest
import trustme
from redis.asyncio import Redis

from extender.background import in_background
from extender.credentials.keyring import ANONYMOUS, CredentialId
from extender.images.content import Content
from extender.images.reference import PackedDigest, digest_of, pack_digest
from extender.resolver.image_cache import ImageQuery, References, Target
from extender.resolver.persistence import Persistence, PersistenceLimits
from extender.resolver.resolver import Resolver
from extender.store.rows import Batch, NameRow, Store, StoreError
from extender.store.url import open_store
from extender.watched_files import RELOADS, FileWatcher
from testbed.clock import Clock
from testbed.debian_redis import DebianRedis
from testbed.eventually import eventually
from tests.unit.resolver.fake_registry import PUBLIC as KEYS
from tests.unit.resolver.fake_registry import FakeRegistry, index_of, make_resolver

PUBLIC, TENANT = ANONYMOUS.id, CredentialId("tenant")
NONE: dict[tuple[str, PackedDigest, CredentialId], float] = {}
Open = Callable[..., Store]
StartRedis = Callable[..., DebianRedis]


def row(number: int, credential_id: CredentialId = PUBLIC, at: float = 1e9) -> NameRow:
    packed = pack_digest(digest_of(str(number).encode()))
    return NameRow("ghcr.io:443/team/app", f"v{number}", credential_id, packed, index_of("linux/arm64"), at)


def client_of(server: DebianRedis) -> Redis:
    return Redis(port=server.port)


async def only_key(client: Redis, pattern: str) -> str:
    (key,) = await client.keys(pattern)
    assert isinstance(key, bytes)
    return key.decode()


@pytest.fixture
async def open_url() -> AsyncIterator[Open]:
    async with AsyncExitStack() as stack:

        def open_it(url: str, watcher: FileWatcher | None = None) -> Store:
            store = open_store(url, size=10, stale_seconds=60, watcher=watcher or FileWatcher())
            assert store is not None
            stack.push_async_callback(store.close)
            return store

        yield open_it


@pytest.fixture
def redis(start_redis: StartRedis) -> DebianRedis:
    return start_redis()


@pytest.fixture
def store(open_url: Open, redis: DebianRedis) -> Store:
    return open_url(f"redis://127.0.0.1:{redis.port}")


async def find(store: Store, item: NameRow, *credential_ids: CredentialId) -> list[NameRow | None]:
    return list(await store.get(item.repository, item.name, credential_ids or (item.credential_id,)))


async def reason_of(store: Store) -> str:
    with pytest.raises(StoreError) as caught:
        await find(store, row(0))
    return caught.value.reason


async def test_what_one_replica_writes_another_reads(open_url: Open, redis: DebianRedis) -> None:
    """By tag and by digest, for each scope its own."""
    url = f"redis://127.0.0.1:{redis.port}/3"
    by_digest = NameRow(row(1).repository, row(1).packed, PUBLIC, row(1).packed, row(1).content, 5.0)
    sha512 = NameRow(row(1).repository, f"sha512:{'a' * 128}", PUBLIC, f"sha512:{'a' * 128}", row(1).content, 5.0)
    await open_url(url).put(Batch([row(0), row(0, TENANT), by_digest, sha512], NONE))
    other = open_url(url)
    assert await find(other, row(0), PUBLIC, CredentialId("other"), TENANT) == [row(0), row(0, TENANT)]
    assert await find(other, by_digest) == [by_digest]
    assert await find(other, sha512) == [sha512]
    assert await find(other, row(1)) == []
    assert [rows async for rows in other.rows()] == []
    assert await find(open_url(f"redis://127.0.0.1:{redis.port}/4"), row(0)) == []
    assert await find(open_url(f"{url}?prefix=team:"), row(0)) == []


async def test_every_key_has_our_prefix_and_lapses(store: Store, redis: DebianRedis) -> None:
    """Others may use the same server, and what nobody renews goes by itself."""
    await store.put(Batch([row(0)], {("ghcr.io/team/other", "v1", PUBLIC): 1.0}))
    async with client_of(redis) as client:
        keys = [key.decode() for key in await client.keys("*") if isinstance(key, bytes)]
        lifetimes = [await client.ttl(key) for key in keys]
    assert len(keys) == 2
    assert all(key.startswith("multiarch-extender:1:") for key in keys)
    assert all(6 * 86_400 < seconds <= 7 * 86_400 for seconds in lifetimes)


async def test_a_denial_voids_what_was_proven_before_whoever_writes_it_when(open_url: Open, redis: DebianRedis) -> None:
    """A replica that comes late with an old row does not bring it back; a later proof counts."""
    first, second = (open_url(f"redis://127.0.0.1:{redis.port}") for _ in range(2))
    await first.put(Batch([row(0), row(0, TENANT)], NONE))
    await first.put(Batch([], {(row(0).repository, row(0).name, PUBLIC): 1e9}))
    assert await find(second, row(0), PUBLIC, TENANT) == [row(0, TENANT)]
    await second.put(Batch([row(0)], NONE))
    assert await find(second, row(0)) == []
    later = row(0, at=1e9 + 1)
    await second.put(Batch([later], NONE))
    assert await find(first, row(0)) == [later]


async def test_what_somebody_else_put_there_is_no_row(store: Store, redis: DebianRedis) -> None:
    """Neither another key's record, nor text, nor a damaged denial that might have been one."""
    await store.put(Batch([row(0), row(1)], {("ghcr.io/team/other", row(1).name, PUBLIC): 1.0}))
    async with client_of(redis) as client:
        first, second = [await only_key(client, f"*:name:*:v{number}") for number in range(2)]
        record = await client.get(second)
        assert record is not None
        await client.set(first, record)
        assert await find(store, row(0)) == [None]
        await client.set(first, "whatever")
        assert await find(store, row(0)) == [None]
        denial = await only_key(client, "*:denial:*")
        assert await find(store, row(1)) == [row(1)]
        await client.set(denial.replace("ghcr.io/team/other", row(1).repository), "whatever")
        assert await find(store, row(1)) == [None]


async def test_a_new_password_is_for_new_connections(open_url: Open, start_redis: StartRedis, tmp_path: Path) -> None:
    """Connections that are open stay; a file in the middle of a change is no password."""
    redis = start_redis("--requirepass", "old")
    password = tmp_path / "password"
    password.write_text("old\n")
    watcher, refused = FileWatcher(), RELOADS["cache.url"]["refused"].value
    store = open_url(f"redis://127.0.0.1:{redis.port}?password_file={password}", watcher=watcher)
    await store.put(Batch([row(0)], NONE))
    async with Redis(port=redis.port, password="old") as client, in_background(watcher.run(0.005), "watch"):
        await client.config_set("requirepass", "new")
        assert await find(store, row(0)) == [row(0)]
        password.write_text("")
        await eventually(lambda: RELOADS["cache.url"]["refused"].value != refused)
        assert await find(store, row(0)) == [row(0)]
        await client.client_kill_filter(_type="normal", skipme=True)
        assert await reason_of(store) == "unavailable"
        password.write_text("new")
        await eventually(lambda: find(store, row(0)), [row(0)].__eq__, despite=StoreError)


async def test_who_has_the_password_is_let_in(open_url: Open, start_redis: StartRedis, tmp_path: Path) -> None:
    """As a user with the rights that the how-to gives, or with the server's password, from the URL or from a file."""
    page = (Path(__file__).parents[3] / "docs/registries.md").read_text()
    rights = page.partition("user multiarch on >PASSWORD ")[2].partition("\n")[0].split()
    assert rights[0] == "~multiarch-extender:*"
    redis = start_redis("--requirepass", "p@ss/word", "--user", "me", "on", ">se:cret", *rights)
    at = f"127.0.0.1:{redis.port}"
    (tmp_path / "password").write_text("se:cret\n")
    good = [
        f"redis://:{quote('p@ss/word', safe='')}@{at}",
        f"redis://me:{quote('se:cret')}@{at}",
        f"redis://me@{at}?password_file={tmp_path / 'password'}",
    ]
    for url in good:
        await open_url(url).put(Batch([row(0)], NONE))
        assert await find(open_url(url), row(0)) == [row(0)]
    for url in (f"redis://{at}", f"redis://:wrong@{at}", f"redis://me:wrong@{at}"):
        store = open_url(url)
        assert await reason_of(store) == "unavailable"
        with pytest.raises(StoreError) as caught:
            await store.put(Batch([row(0)], NONE))
        assert "wrong" not in str(caught.value)


def issue(folder: Path, name: str, authority: trustme.CA, host: str = "127.0.0.1") -> None:
    """Writes a certificate and its key."""
    leaf = authority.issue_cert(host)
    leaf.private_key_pem.write_to_path(str(folder / f"{name}.key"))
    leaf.cert_chain_pems[0].write_to_path(str(folder / f"{name}.pem"))


def start_tls(start_redis: StartRedis, folder: Path, authority: trustme.CA) -> str:
    """Returns the URL of a server that asks for certificates of the authority, and has one itself."""
    issue(folder, "server", authority)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    redis = start_redis(
        "--tls-cert-file", str(folder / "server.pem"), "--tls-key-file", str(folder / "server.key"),
        "--tls-ca-cert-file", str(folder / "ca.pem"), "--tls-auth-clients", "yes", tls=True,
    )  # fmt: skip
    return f"127.0.0.1:{redis.port}"


async def test_tls_is_verified_both_ways(open_url: Open, start_redis: StartRedis, tmp_path: Path) -> None:
    """A server that our CA did not sign gets nothing, and one that asks for it is shown our certificate."""
    authority = trustme.CA()
    at = start_tls(start_redis, tmp_path, authority)
    issue(tmp_path, "client", authority)
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    ours = f"certificate_file={tmp_path / 'client.pem'}&key_file={tmp_path / 'client.key'}"
    store = open_url(f"rediss://{at}?ca_file={tmp_path / 'ca.pem'}&{ours}")
    await store.put(Batch([row(0)], NONE))
    assert await find(store, row(0)) == [row(0)]
    for url in (
        f"rediss://{at}?ca_file={tmp_path / 'other.pem'}&{ours}",
        f"rediss://{at}?{ours}",
        f"rediss://{at}?ca_file={tmp_path / 'ca.pem'}",
        f"redis://{at}",
    ):
        assert await reason_of(open_url(url)) == "unavailable"


async def test_new_certificates_are_for_new_connections(
    open_url: Open, start_redis: StartRedis, tmp_path: Path
) -> None:
    """Authorities and our own certificate; a key that does not fit yet keeps the old ones."""
    old, new = trustme.CA(), trustme.CA()
    (tmp_path / "both.pem").write_bytes(old.cert_pem.bytes() + new.cert_pem.bytes())
    old.cert_pem.write_to_path(str(tmp_path / "trusted.pem"))
    at = start_tls(start_redis, tmp_path, new)
    issue(tmp_path, "client", old, "client")
    watcher = FileWatcher()
    store = open_url(
        f"rediss://{at}?ca_file={tmp_path / 'trusted.pem'}"
        f"&certificate_file={tmp_path / 'client.pem'}&key_file={tmp_path / 'client.key'}",
        watcher=watcher,
    )
    async with in_background(watcher.run(0.005), "watch"):
        assert await reason_of(store) == "unavailable"
        (tmp_path / "client.key").write_bytes(new.issue_cert("client").private_key_pem.bytes())
        (tmp_path / "both.pem").replace(tmp_path / "trusted.pem")
        assert await reason_of(store) == "unavailable"
        issue(tmp_path, "client", new, "client")
        await eventually(lambda: find(store, row(0)), [].__eq__, despite=StoreError)


async def test_a_server_that_is_full_is_not_written_but_read(open_url: Open, start_redis: StartRedis) -> None:
    """The reason is its own, so that the memory it needs can be given to it."""
    redis = start_redis("--maxmemory-policy", "noeviction")
    store = open_url(f"redis://127.0.0.1:{redis.port}")
    await store.put(Batch([row(0)], NONE))
    async with client_of(redis) as client:
        await client.config_set("maxmemory", "1")
    with pytest.raises(StoreError) as caught:
        await store.put(Batch([row(1)], NONE))
    assert caught.value.reason == "unwritable"
    assert await find(store, row(0)) == [row(0)]


async def test_a_server_that_hangs_is_given_up(store: Store, redis: DebianRedis) -> None:
    """It accepts connections and says nothing; when it speaks again, no answer goes to another's question."""
    await store.put(Batch([row(0), row(1)], NONE))
    clock = Clock()
    persistence = Persistence(store, clock=clock, wall_clock=lambda: 1e9, limits=PersistenceLimits(read_seconds=0.05))
    redis.pause()
    target = References(1).target_of(f"{row(0).repository}:{row(0).name!s}")
    assert isinstance(target, Target)
    assert await persistence.find(target, [PUBLIC]) == []
    redis.resume()
    clock.advance(60)
    for number in (1, 0):
        assert await find(store, row(number)) == [row(number)]


async def test_a_server_that_dies_and_comes_back_costs_no_answer(
    redis: DebianRedis, store: Store, open_url: Open
) -> None:
    """Under load, warm images and cold ones: every answer comes, before, meanwhile and after; then it is used again."""
    registry, clock = FakeRegistry(), Clock()
    images = [f"ghcr.io/team/app-{number}:1" for number in range(900)]
    for image in images:
        registry.push(image, "linux/arm64")

    def resolver_over(one: Store) -> Resolver:
        limits = PersistenceLimits(read_seconds=30)
        persistence = Persistence(one, clock=clock, wall_clock=clock.ahead(1e9), limits=limits)
        return make_resolver(registry, clock, size=10_000, persistence=persistence)

    resolver = resolver_over(store)

    async def load(numbers: range, until: Callable[[], None]) -> None:
        """All of these images, and warm ones between them, while `until` happens in the middle of it."""
        work = [asyncio.create_task(resolver.resolve_all([ImageQuery(images[number]), ImageQuery(images[0])], KEYS, 60))
                for number in numbers]  # fmt: skip
        await work[len(work) // 10]
        until()
        for answers in await asyncio.gather(*work):
            assert all(isinstance(answer, Content) for answer in answers)

    await load(range(300), redis.kill)
    await load(range(300, 600), lambda: None)
    await resolver.flush()  # or a write that fails now would open the breaker after the minute
    redis.start()
    clock.advance(60)
    await load(range(600, 900), lambda: None)
    await resolver.flush()
    registry.requests.clear()
    other = resolver_over(open_url(f"redis://127.0.0.1:{redis.port}"))
    answers = await other.resolve_all([ImageQuery(image) for image in images[600:]], KEYS, 60)
    assert all(isinstance(answer, Content) for answer in answers)
    assert registry.requests == []
    await asyncio.gather(resolver.close(), other.close())
