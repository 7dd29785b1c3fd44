"""Names are resolved side by side, without slow zones holding up names that are known to resolve."""

import asyncio
import gc
import socket
import threading
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future
from contextvars import Context
from typing import Any, TypeVar

import pytest
from aiohttp.abc import ResolveResult

from extender.errors import NameUnresolved
from extender.registry.names import NameResolver, look_up_addresses
from extender.registry.transport import deadline
from extender.turns import Interest, set_interest
from testbed.clock import Clock

T = TypeVar("T")


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


def context_of(tenant: str) -> Context:
    """The context of work that this tenant wants."""
    context = Context()
    context.run(set_interest, Interest(tenant, 1000.0))
    return context


def run_for(tenant: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """The work in a task on behalf of this tenant."""
    return asyncio.get_running_loop().create_task(work, context=context_of(tenant))


async def settle() -> None:
    """Lets tasks run until they wait, and threads begin what they have been given."""
    for _ in range(20):
        await asyncio.sleep(0.002)


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


async def test_a_name_that_does_not_resolve_is_an_os_error(
    resolver: NameResolver, servers: NameServers, clock: Clock
) -> None:
    """For five seconds without another lookup, at whatever port, and then after one."""
    for seconds, lookups in ((0.0, 1), (4.9, 1), (0.1, 2)):
        clock.advance(seconds)
        for port in (443, 5000):
            with pytest.raises(socket.gaierror, match="no such name"):
                await resolver.resolve("bad.example", port)
        assert servers.requested == ["bad.example"] * lookups


async def test_a_name_that_does_not_resolve_leaves_nothing_to_the_garbage_collector(resolver: NameResolver) -> None:
    """A zone without names fails a hundred times a second, and collections hold everybody up."""
    gc.collect()
    gc.disable()
    try:
        before = sum(type(each) is Future for each in gc.get_objects())
        for number in range(20):
            with pytest.raises(socket.gaierror):
                await resolver.resolve(f"bad.{number}.example", 443)
        await settle()
        after = sum(type(each) is Future for each in gc.get_objects())
        assert after <= before + 8  # of each thread the last
    finally:
        gc.enable()


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
    slow = [run_for("shop", resolver.resolve(f"slow.{number}.example", 443)) for number in range(100)]
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


async def test_a_name_has_the_same_addresses_at_each_port(resolver: NameResolver, servers: NameServers) -> None:
    """They are looked up once, and given with the port that was asked for."""
    found = [await resolver.resolve("a.example", port) for port in (443, 5000)]
    assert [[result["port"] for result in each] for each in found] == [[443], [5000]]
    assert servers.requested == ["a.example"]


async def test_slow_zones_of_one_tenant_leave_threads_for_others(resolver: NameResolver, servers: NameServers) -> None:
    """A hundred new names of one tenant hang; new names of others resolve at once."""
    slow = [run_for("mallory", resolver.resolve(f"slow.{number}.example", 443)) for number in range(100)]
    await settle()
    assert len(servers.requested) == 8
    async with asyncio.timeout(5):
        assert await run_for("honest", resolver.resolve("registry.example", 443))
        assert await run_for("other", resolver.resolve("another.example", 443))
    assert not any(task.done() for task in slow)
    servers.go.set()
    await asyncio.gather(*slow)


async def test_names_that_have_resolved_and_turn_slow_leave_threads_for_others(
    resolver: NameResolver, servers: NameServers, clock: Clock
) -> None:
    """Whoever made a hundred names known cannot hold up the known names of others."""
    servers.go.set()
    for number in range(100):
        await run_for("mallory", resolver.resolve(f"slow.{number}.example", 443))
    await run_for("honest", resolver.resolve("registry.example", 443))
    servers.go.clear()
    clock.advance(60)
    slow = [run_for("mallory", resolver.resolve(f"slow.{number}.example", 443)) for number in range(100)]
    await settle()
    async with asyncio.timeout(5):
        assert await run_for("honest", resolver.resolve("registry.example", 443))
    assert not any(task.done() for task in slow)
    servers.go.set()
    await asyncio.gather(*slow)


async def test_a_queued_name_that_another_tenant_wants_gets_that_tenant_s_thread(
    resolver: NameResolver, servers: NameServers
) -> None:
    """Whoever names a host first cannot hold it back from the others."""
    slow = [run_for("mallory", resolver.resolve(f"slow.{number}.example", 443)) for number in range(100)]
    queued = run_for("mallory", resolver.resolve("registry.example", 443))
    await settle()
    assert "registry.example" not in servers.requested
    async with asyncio.timeout(5):
        assert await run_for("honest", resolver.resolve("registry.example", 443))
        assert await queued
    servers.go.set()
    await asyncio.gather(*slow)


async def test_a_tenant_s_names_do_not_drive_others_from_memory(
    resolver: NameResolver, servers: NameServers, clock: Clock
) -> None:
    """Thousands of names that resolve at once leave the names of others known."""
    await run_for("honest", resolver.resolve("registry.example", 443))
    context = context_of("mallory")
    for number in range(4100):
        await asyncio.get_running_loop().create_task(resolver.resolve(f"{number}.example"), context=context)
    servers.requested.clear()
    assert await run_for("honest", resolver.resolve("registry.example", 443))
    assert servers.requested == []


async def test_a_zone_with_thousands_of_addresses_costs_little(clock: Clock) -> None:
    """The first 32 are used."""

    def look_up(host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
        return [
            ResolveResult(hostname=host, host=f"192.0.2.{number % 256}", port=port, family=family, proto=6, flags=0)
            for number in range(4000)
        ]

    resolver = NameResolver(clock=clock, look_up=look_up)
    assert len(await resolver.resolve("many.example", 443)) == 32
    await resolver.close()


def test_addresses_of_the_c_library() -> None:
    """A literal address needs no name server."""
    (found,) = look_up_addresses("127.0.0.1", 443, socket.AF_INET)
    assert (found["host"], found["port"], found["family"]) == ("127.0.0.1", 443, socket.AF_INET)
