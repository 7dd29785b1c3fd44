"""Whose turn it is, in simulated time; how much tenants may hold; and in which order their items are served."""

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.turns import OPERATOR, FairQueue, NoTurn, Slots, Turns
from testbed.memory_network import run_in_memory

HOSTS = ["x", "y"]
TENANTS = ["a", "b", "c"]


class Work:
    """A piece of work that waits for a turn, and holds it until `end`."""

    def __init__(self, turns: Turns, tenant: str, host: str = "", began: list["Work"] | None = None) -> None:
        self.tenant = tenant
        self.host = host
        self.has_begun = False
        self.passed = 0  # how often a turn that it could have had went to another
        self._turns = turns
        self._began = began
        self._end = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        async with self._turns.turn(self.tenant, self.host):
            self.has_begun = True
            if self._began is not None:
                self._began.append(self)
            await self._end.wait()

    async def end(self) -> None:
        self._end.set()
        await self.task


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_turns_are_in_all_of_a_tenant_and_at_a_host() -> None:
    """A tenant has its limit although there is room, and a host although its tenants have room."""

    async def run() -> None:
        turns = Turns(total=256, each=64, at_host=16)
        alone = [Work(turns, "mallory", f"host-{number}") for number in range(100)]
        await settle()
        assert sum(work.has_begun for work in alone) == 64
        at_host = [Work(turns, f"tenant-{number}", "shared") for number in range(20)]
        await settle()
        assert sum(work.has_begun for work in at_host) == 16
        assert turns.waiting == 36 + 4
        for work in [*alone, *at_host]:
            work.task.cancel()

    run_in_memory(lambda _: run())


def test_tenants_take_turns_and_so_do_their_hosts() -> None:
    """One that has a hundred pieces of work waiting delays another by one turn."""

    async def run() -> None:
        began: list[Work] = []
        turns = Turns(total=1, each=1, at_host=1)
        first = Work(turns, "first", "z")
        await settle()
        for number in range(4):
            Work(turns, "loud", "x" if number < 3 else "y", began)
        Work(turns, "quiet", "x", began)
        await settle()
        await first.end()
        for _ in range(5):
            await settle()
            await began[-1].end()
        assert [(work.tenant, work.host) for work in began] == [
            ("loud", "x"), ("quiet", "x"), ("loud", "y"), ("loud", "x"), ("loud", "x"),
        ]  # fmt: skip

    run_in_memory(lambda _: run())


def test_who_waits_for_a_minute_is_dropped() -> None:
    """Nothing of it is left in the queue; the operator waits on."""

    async def run() -> None:
        turns = Turns(total=1, each=1, at_host=1)
        holder = Work(turns, "shop")
        await settle()
        command = Work(turns, OPERATOR)
        waiting = Work(turns, "shop")
        with pytest.raises(NoTurn):
            await waiting.task
        assert asyncio.get_running_loop().time() == pytest.approx(60)
        assert turns.waiting == 1
        await holder.end()
        await settle()
        assert command.has_begun
        await command.end()

    run_in_memory(lambda _: run())


@pytest.mark.parametrize("is_granted", [False, True], ids=["waiting", "as-its-turn-comes"])
def test_work_that_is_cancelled_keeps_no_turn(is_granted: bool) -> None:
    """Whether it waits, or its turn comes at the same moment: the next one begins."""

    async def run() -> None:
        turns = Turns(total=1, each=1, at_host=1)
        holder, cancelled, following = Work(turns, "a"), Work(turns, "b"), Work(turns, "c")
        await settle()
        if is_granted:
            holder._end.set()  # noqa: SLF001
            while not holder.task.done():
                await asyncio.sleep(0)
        cancelled.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await cancelled.task
        if not is_granted:
            assert turns.waiting == 1
            await holder.end()
        await settle()
        assert not cancelled.has_begun
        assert following.has_begun
        assert turns.waiting == 0
        await following.end()

    run_in_memory(lambda _: run())


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(TENANTS), st.sampled_from(HOSTS), st.integers(0, 6), st.integers(0, 6)), max_size=40
    ),
    cancels=st.booleans(),
)
def test_a_turn_passes_a_tenant_by_once_for_each_other_one(
    steps: list[tuple[str, str, int, int]], cancels: bool
) -> None:
    """Whatever they do, if the tenant has no other work. And nobody waits who holds no turn and could have one."""

    async def run() -> None:
        turns = Turns(total=6, each=4, at_host=4, wait_seconds=1e9)
        running: list[Work] = []
        waiting: list[Work] = []
        for tenant, host, asks, ends in steps:
            waiting += [Work(turns, tenant, host) for _ in range(asks)]
            if cancels and len(waiting) > 3:
                waiting.pop(ends % 3).task.cancel()
            if not any(work.tenant == "honest" for work in [*waiting, *running]):
                waiting.append(Work(turns, "honest", "x"))
            for number in range(ends + 1):
                await settle()
                begun = [work for work in waiting if work.has_begun]
                for work in waiting:
                    has_room = sum(each.host == work.host for each in [*running, *begun]) < 4
                    is_passed = bool(number) and any(has_room or other.host == work.host for other in begun)
                    work.passed += work.tenant == "honest" and is_passed and not work.has_begun
                    assert work.passed <= len(TENANTS)
                waiting = [work for work in waiting if not work.has_begun]
                running += begun
                assert len(running) <= 6
                for work in waiting:
                    is_full = len(running) == 6 or sum(each.host == work.host for each in running) == 4
                    assert is_full or any(each.tenant == work.tenant for each in running)
                if running:
                    await running.pop(asks % len(running)).end()
            await settle()
        for work in [*waiting, *running]:
            work.task.cancel()
        await asyncio.gather(*(work.task for work in [*waiting, *running]), return_exceptions=True)

    run_in_memory(lambda _: run())


# --- slots


def test_a_tenant_holds_so_many_and_no_more() -> None:
    """Even while it is alone; what it gives back it may take again."""
    slots = Slots(16, 4)
    assert [slots.take("shop") for _ in range(5)] == [True] * 4 + [False]
    slots.give_back("shop")
    assert slots.take("shop")
    assert slots.held == 4


def test_the_last_quarter_is_for_tenants_that_hold_none() -> None:
    """Those that came first leave room for those that come next, one for each."""
    slots = Slots(16, 16)
    assert [slots.take("mallory") for _ in range(13)] == [True] * 12 + [False]
    assert [slots.take(f"tenant-{number}") for number in range(5)] == [True] * 4 + [False]
    assert not slots.admits("tenant-0")


def test_the_operator_has_all_that_is_left() -> None:
    """A command that asks for many images is nobody's rival."""
    slots = Slots(16, 4)
    assert slots.take("shop")
    assert [slots.take(OPERATOR) for _ in range(16)] == [True] * 15 + [False]


def test_slots_are_taken_and_given_back_by_the_number() -> None:
    """Bytes of documents, for example."""
    slots = Slots(100, 50)
    assert slots.take("shop", 30)
    assert not slots.take("shop", 21)
    assert slots.take("shop", 20)
    assert not slots.take("bank", 51)
    slots.give_back("shop", 50)
    assert slots.take("bank", 51)
    assert slots.held == 51


@pytest.mark.parametrize("total", [1, 2, 3, 4, 16, 256])
def test_a_tenant_alone_gets_some(total: int) -> None:
    """However few there are."""
    slots = Slots(total, total)
    assert sum(slots.take("shop") for _ in range(total)) == total - total // 4


@given(steps=st.lists(st.tuples(st.sampled_from(["", "a", "b", "c"]), st.booleans()), max_size=60))
def test_what_is_held_is_what_was_taken_and_not_given_back(steps: list[tuple[str, bool]]) -> None:
    """Never more than there is, in all and of a tenant."""
    slots, held = Slots(8, 3), dict.fromkeys(["", "a", "b", "c"], 0)
    for tenant, is_take in steps:
        if is_take:
            admitted = slots.admits(tenant)
            assert slots.take(tenant) == admitted
            held[tenant] += admitted
        elif held[tenant]:
            slots.give_back(tenant)
            held[tenant] -= 1
        assert slots.held == sum(held.values()) <= 8
        assert max(held["a"], held["b"], held["c"]) <= 3
    if slots.held < 8:
        assert slots.admits("new")


# --- queues


async def test_items_of_tenants_take_turns_and_each_tenant_keeps_its_order() -> None:
    """One with many items delays another's only item by one."""
    queue = FairQueue[str]()
    for number in range(4):
        queue.put("loud", f"loud-{number}")
    queue.put("quiet", "quiet-0")
    assert len(queue) == 5
    assert [await queue.get() for _ in range(5)] == ["loud-0", "quiet-0", "loud-1", "loud-2", "loud-3"]
    assert len(queue) == 0


async def test_waiting_worker_gets_what_comes() -> None:
    """A worker that was cancelled while it waited takes nothing with it."""
    queue = FairQueue[int]()
    cancelled, waiting = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    queue.put("a", 1)
    assert await asyncio.wait_for(waiting, 5) == 1
