"""What callers may have told of observed pods: by right, and by budget."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec
import pytest

from extender.kubernetes.authentication_v1 import UserInfo
from extender.kubernetes.core_v1 import CreatedPod
from extender.outlets.facts import FactsOutlet
from extender.outlets.observations import ObservedPods
from extender.placement.mutation import AdmissionOutcome, ObservedOutcome
from extender.reports.observed import Observations
from extender.server.authenticated import RefusedCaller
from testbed.clock import Clock

WOULD = ObservedOutcome(AdmissionOutcome.PATCHED, ("linux/amd64",), "image app is built only for linux/amd64")
FULL = 5_000


class Access:
    """Everybody may get the pods of `shop`, and those whose name begins with `auditor` all pods."""

    async def identify(self, token: str, _address: str) -> UserInfo | None:
        """The user whose name the token is."""
        return UserInfo(username=token)

    async def may_get_pod(self, user: UserInfo, namespace: str, _name: str) -> bool:
        """Whether the user may."""
        return namespace == "shop" or user.username.startswith("auditor")

    @contextlib.asynccontextmanager
    async def turn(self, _user: UserInfo) -> AsyncIterator[None]:
        """A turn, for everybody at once."""
        yield


@pytest.fixture
def outlet() -> FactsOutlet:
    """An outlet with as many observed workloads as are kept, ten of them in `shop`."""
    observed_pods = ObservedPods(restricts=True, wall_clock=Clock(1_700_000_000.0))
    for number in range(FULL):
        created = msgspec.convert({"metadata": {"name": f"p{number}"}, "spec": {}}, CreatedPod)
        observed_pods.note_review(created, "shop" if number < 10 else "bank", WOULD)
    unused = cast("Any", None)
    return FactsOutlet(
        unused,
        unused,
        cast("Any", Access()),
        observed_pods=observed_pods,
        platforms=frozenset,
        wait_seconds=0,
        clock=Clock(),
    )


async def ask(outlet: FactsOutlet, name: str, namespace: str = "") -> int:
    """How many workloads the user is told of, or the status of the refusal."""
    try:
        body = await outlet.observed(UserInfo(username=name), {"namespace": namespace} if namespace else {})
    except RefusedCaller as exc:
        return exc.status
    return len(msgspec.json.decode(body, type=Observations).workloads)


async def test_addresses_take_turns_with_their_questions(outlet: FactsOutlet) -> None:
    """Whoever asks much waits for itself: a question of another address begins next."""
    loud = [asyncio.create_task(outlet.identify("mallory", "192.0.2.1")) for _ in range(300)]
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        assert await outlet.identify("reader", "192.0.2.2") == UserInfo(username="reader")
    waiting = [task for task in loud if not task.done()]
    assert len(waiting) > 100
    for task in waiting:
        task.cancel()
    await asyncio.gather(*loud, return_exceptions=True)


async def test_a_caller_without_the_right_costs_nothing_of_the_budget(outlet: FactsOutlet) -> None:
    """However often it asks, who has the right is told."""
    assert {await ask(outlet, "reader") for _ in range(50)} == {403}
    assert await ask(outlet, "auditor") == FULL


async def test_answers_have_a_budget_by_what_they_tell(outlet: FactsOutlet) -> None:
    """Two of the largest to one user, five to different ones; small ones are told all the same."""
    assert [await ask(outlet, "auditor") for _ in range(4)] == [FULL, FULL, 503, 503]
    assert [await ask(outlet, "reader", "shop") for _ in range(20)] == [10] * 20
    assert [await ask(outlet, f"auditor-{number}") for number in range(4)] == [FULL, FULL, FULL, 503]
    assert await ask(outlet, "reader", "shop") == 10


async def test_the_budget_is_whole_again_after_a_while(outlet: FactsOutlet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parts come back one by one."""
    monkeypatch.setattr("extender.outlets.facts.ANSWER_SECONDS", 2.0)
    assert [await ask(outlet, "auditor") for _ in range(3)] == [FULL, FULL, 503]
    async with asyncio.timeout(30):
        while await ask(outlet, "auditor") == 503:
            await asyncio.sleep(0.1)
