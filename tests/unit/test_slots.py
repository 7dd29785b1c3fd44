"""How much tenants may hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.turns import OPERATOR, Slots


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
