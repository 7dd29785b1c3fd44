"""What the API server says of our own rights, and for how long that counts."""

from collections.abc import Callable

import pytest

from extender.cluster.client import ClusterClient
from extender.cluster.own_rights import CHECK_SECONDS, PROVEN_SECONDS, RETRY_SECONDS, OwnRights
from extender.kubernetes.api_groups import ResourceAttributes
from testbed.clock import Clock
from tests.integration.cluster.api_server import ApiServer, Refusal

WANTED = [ResourceAttributes("watch", "pods"), ResourceAttributes("patch", "pods")]
PROVEN = (CHECK_SECONDS, True)


async def checked(client: ClusterClient, clock: Clock, *changes: Callable[[], object]) -> list[tuple[float, bool]]:
    """The pause after each check and whether the rights are proven then; between two checks there is a change."""
    found: list[tuple[float, bool]] = []

    async def sleep(seconds: float) -> None:
        found.append((seconds, rights.are_proven()))
        if len(found) > len(changes):
            raise ConnectionAbortedError
        changes[len(found) - 1]()

    rights = OwnRights(client, WANTED, clock=clock, sleep=sleep)
    assert not rights.are_proven()
    with pytest.raises(ConnectionAbortedError):
        await rights.run()
    return found


async def test_rights_count_for_a_while_once_all_are_allowed(
    api: ApiServer, client: ClusterClient, clock: Clock
) -> None:
    """An API server that cannot be asked disproves nothing."""

    def fail(seconds: float) -> None:
        api.refusals.append(("send", Refusal(500)))
        clock.advance(seconds)

    found = await checked(
        client, clock, lambda: fail(PROVEN_SECONDS - 1), lambda: fail(1), lambda: clock.advance(PROVEN_SECONDS)
    )
    assert found == [PROVEN, (RETRY_SECONDS, True), (RETRY_SECONDS, False), PROVEN]


async def test_one_right_that_is_missing_is_enough(api: ApiServer, client: ClusterClient, clock: Clock) -> None:
    """It is looked for again soon, then less often, and what was proven before counts no more."""

    def deny(*, on: bool = True) -> None:
        api.faults.deny("patch", "pods", on=on)

    found = await checked(client, clock, *[deny] * 7, lambda: deny(on=False))
    pauses = [*(RETRY_SECONDS * factor for factor in (1, 2, 4, 8, 16)), *[CHECK_SECONDS] * 2]
    assert found == [PROVEN, *((seconds, False) for seconds in pauses), PROVEN]
