"""Names are resolved side by side, without slow zones holding up names that are known to resolve."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator

import pytest
from aiohttp.abc import ResolveResult

from extender.errors import NameUnresolved
from extender.registry.names import NameResolver, look_up_addresses
from extender.registry.transport import deadline
from testbed.clock import Clock


class NameServers:
    """Name servers of which those for `slow.` answer when `go` is set, and those for `bad.` have no such name."""

    def __init__(self) -> None:
        self.requested: list[str] = []
        self.go = threading.Event()
        self.down: set[str] = set()

    def look_up(self, host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
        self.requested.append(host)
        if host.startswith("slow."):
            self.go.wait(10)
        if host.startswith("bad.") or host in self.down:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [ResolveResult(hostname=host, host="192.0.2.1", port=port, family=family, proto=6, flags=0)]


@pytest.fixture
def servers() -> NameServers:
    return NameServers()


@pytest.fixture
async def resolver(servers: NameServers, clock: Clock) -> AsyncIterator[NameResolver]:
    """Resolves by these servers; gives up waiting after 5 s."""
    resolver = NameResolver(clock=clock, look_up=servers.look_up, resolve_seconds=5)
    yield resolver
    servers.go.set()
    await resolver.close()


@pytest.fixture
def clock() -> Clock:
    """The time by which addresses are fresh."""
    return Clock()


async def test_addresses_are_kept_for_ten_seconds(resolver: NameResolver, servers: NameServers, clock: Clock) -> None:
    """Then the name is looked up again."""
    first = await resolver.resolve("a.example", 443)
    clock.advance(9.9)
    assert await resolver.resolve("a.example", 443) == first
    assert servers.requested == ["a.example"]
    clock.advance(0.1)
    await resolver.resolve("a.example", 443)
    assert servers.requested == ["a.example"] * 2


async def test_a_name_is_looked_up_once_at_a_time(resolver: NameResolver, servers: NameServers) -> None:
    """All callers share the lookup; one that goes away does not end it."""
    callers = [asyncio.create_task(resolver.resolve("slow.example", 443)) for _ in range(10)]
    await asyncio.sleep(0)
    callers[0].cancel()
    servers.go.set()
    outcomes = await asyncio.gather(*callers, return_exceptions=True)
    assert servers.requested == ["slow.example"]
    assert [isinstance(outcome, list) for outcome in outcomes] == [False] + [True] * 9


async def test_a_name_that_does_not_resolve_is_an_os_error(resolver: NameResolver, servers: NameServers) -> None:
    """And is looked up again by the next caller."""
    for _ in range(2):
        with pytest.raises(socket.gaierror, match="no such name"):
            await resolver.resolve("bad.example", 443)
    assert servers.requested == ["bad.example"] * 2


async def test_slow_zones_do_not_hold_up_names_that_have_resolved(
    resolver: NameResolver, servers: NameServers, clock: Clock
) -> None:
    """A hundred of them fill the threads for unproven names only."""
    await resolver.resolve("registry.example", 443)
    clock.advance(60)
    slow = [asyncio.create_task(resolver.resolve(f"slow.{number}.example", 443)) for number in range(100)]
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        assert await resolver.resolve("registry.example", 443)
    assert not any(task.done() for task in slow)
    servers.go.set()
    await asyncio.gather(*slow)


async def test_lookups_that_nobody_waits_for_are_dropped(resolver: NameResolver, servers: NameServers) -> None:
    """Of a hundred names whose callers went away, those that had no thread yet are never looked up."""
    slow = [asyncio.create_task(resolver.resolve(f"slow.{number}.example", 443)) for number in range(100)]
    await asyncio.sleep(0)
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    servers.go.set()
    await resolver.resolve("new.example", 443)
    assert len(servers.requested) <= 9


async def test_the_wait_for_a_name_ends(servers: NameServers, clock: Clock) -> None:
    """With an OSError, which aiohttp takes for a name that does not resolve."""
    resolver = NameResolver(clock=clock, look_up=servers.look_up, resolve_seconds=0.01)
    with pytest.raises(socket.gaierror, match="in time"):
        await resolver.resolve("slow.example", 443)
    servers.go.set()
    await resolver.close()


async def test_an_exchange_that_ends_while_its_name_resolves_blames_no_host(resolver: NameResolver) -> None:
    """The host was not asked, so that its breaker must not count the failure."""
    with pytest.raises(NameUnresolved, match="was not asked"):
        async with deadline("slow.example", 0.01):
            await resolver.resolve("slow.example", 443)


def test_addresses_of_the_c_library() -> None:
    """A literal address needs no name server."""
    (found,) = look_up_addresses("127.0.0.1", 443, socket.AF_INET)
    assert (found["host"], found["port"], found["family"]) == ("127.0.0.1", 443, socket.AF_INET)
