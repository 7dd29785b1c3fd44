"""Budgets: totals, shares by tenant, refusals, and their metrics."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest

from extender.budgets import OPERATOR, SCARCITY, Budget, Shares, budgets, declare_budget
from extender.metrics import REGISTRY

SPEC = declare_budget("tests.budgets.lookups", unit="lookups", total=100, most_each=50, why="a test")


def test_a_tenant_that_is_alone_gets_no_more_than_its_share() -> None:
    """What it may hold while nobody else wants any is below the total, so that the next one finds some free."""
    budget = Budget(SPEC)
    assert [budget.take("a") for _ in range(51)] == [True] * 50 + [False]
    assert budget.take("b")
    assert budget.held_by("a") == 50
    assert budget.largest_holder() == "a"


def test_shares_shrink_with_every_tenant_that_comes() -> None:
    """Of two tenants each may hold a third, and of three a quarter."""
    budget = Budget(SPEC)
    assert budget.take("b")
    assert [budget.take("a") for _ in range(34)] == [True] * 33 + [False]
    assert budget.take("c")
    assert not budget.take("a")
    assert budget.take("b")


def test_what_is_given_back_can_be_taken_again() -> None:
    """A refusal lasts no longer than its cause."""
    budget = Budget(SPEC)
    assert budget.take("a", 50)
    assert not budget.take("a")
    budget.give_back("a", 50)
    assert budget.take("a")
    assert budget.held_by("a") == 1


def test_the_operator_has_no_share() -> None:
    """A command that looks up 100 images is alone in its process."""
    budget = Budget(SPEC)
    assert budget.take(OPERATOR, 100)
    assert not budget.take(OPERATOR)
    assert not budget.take("a")


def test_use_and_refusals_are_metrics() -> None:
    """Each declared budget has its series from the start."""
    spec = declare_budget("tests.budgets.metrics", unit="bytes", total=10, most_each=5, why="a test")
    budget = Budget(spec)
    budget.take("a", 4)
    budget.take("a", 4)
    text = generate_latest(REGISTRY).decode()
    assert 'multiarch_budget_in_use{budget="tests.budgets.metrics"} 4.0' in text
    assert 'multiarch_budget_total{budget="tests.budgets.metrics"} 10.0' in text
    assert 'multiarch_budget_refusals_total{budget="tests.budgets.metrics"} 1.0' in text
    budget.give_back("a", 4)
    assert spec in budgets()


def test_one_name_is_one_budget() -> None:
    """Two declarations would add up in one series."""
    with pytest.raises(ValueError, match="two budgets"):
        declare_budget("tests.budgets.lookups", unit="lookups", total=1, most_each=1, why="another")


@given(
    total=st.integers(20, 1000),
    greedy=st.lists(st.integers(0, 9), max_size=2000),
    newcomers=st.integers(1, 8),
)
def test_whoever_comes_next_finds_a_share(total: int, greedy: list[int], newcomers: int) -> None:
    """Tenants that all want some from the start, and take without end, leave each of the others its share."""
    shares = Shares(total, total // 2)
    tenants = [f"greedy-{number}" for number in range(10)]
    for tenant in [*tenants, *(f"newcomer-{number}" for number in range(newcomers))]:
        shares.want(tenant)
    for number in greedy:
        if shares.admits(tenants[number]):
            shares.take(tenants[number])
    fair = max(1, total // (10 + newcomers + 1))
    for number in range(newcomers):
        tenant = f"newcomer-{number}"
        for _ in range(fair):
            assert shares.admits(tenant)
            shares.take(tenant)


@pytest.fixture
def scarcity() -> Iterator[None]:
    """Memory is short."""
    SCARCITY.set_on(True)
    yield
    SCARCITY.set_on(False)


def test_while_memory_is_short_budgets_are_a_quarter() -> None:
    """What is held stays, and nothing is taken before enough of it was given back; then all is as before."""
    budget = Budget(SPEC)
    assert budget.take("a", 40)
    SCARCITY.set_on(True)
    try:
        assert not budget.take("a")
        assert not budget.take("b")
        budget.give_back("a", 40)
        assert [budget.take("a") for _ in range(13)] == [True] * 12 + [False]
        assert [budget.take("b") for _ in range(9)] == [True] * 8 + [False]
        assert b'multiarch_budget_total{budget="tests.budgets.lookups"} 25.0' in generate_latest(REGISTRY)
    finally:
        SCARCITY.set_on(False)
    assert budget.take("a", 20)
    assert b'multiarch_budget_total{budget="tests.budgets.lookups"} 100.0' in generate_latest(REGISTRY)


@pytest.mark.usefixtures("scarcity")
def test_a_small_budget_is_never_nothing() -> None:
    """Of two, one is left."""
    budget = Budget(SPEC, total=2)
    assert budget.take("a")
    assert not budget.take("b")
