"""Decisions that are used again: for how long, and how many are held."""

from extender.outlets.decision_cache import DECISIONS, FRESH_SECONDS, DecisionCache
from testbed.clock import Clock


def test_a_decision_is_found_for_its_own_kind_and_a_second() -> None:
    """Counted from when it was kept, however often it has been of use."""
    clock = Clock(0.0)
    recent = DecisionCache[str](clock)
    assert recent.find("web") is None
    recent.keep("web", "yes")
    assert (recent.find("web"), recent.find("db")) == ("yes", None)
    clock.now = FRESH_SECONDS - 0.01
    assert recent.find("web") == "yes"
    clock.now = FRESH_SECONDS
    assert recent.find("web") is None
    recent.keep("web", "no")
    assert recent.find("web") == "no"


def test_the_oldest_is_forgotten_first() -> None:
    """Pods of which no two are alike must not fill memory."""
    recent = DecisionCache[int](Clock())
    for number in range(DECISIONS.rows):
        recent.keep(number, number)
    recent.keep(0, 0)
    recent.keep("one more", -1)
    assert len(recent) == DECISIONS.rows
    assert (recent.find(0), recent.find(1), recent.find(2)) == (0, None, 2)


def test_a_large_template_is_not_kept() -> None:
    """A pod may have a megabyte, and a table of such pods would take gigabytes."""
    recent = DecisionCache[int](Clock())
    recent.keep(("shop", "x" * 8_000), 1)
    recent.keep(("shop", "y" * 9_000), 2)
    assert len(recent) == 1
    assert recent.find(("shop", "x" * 8_000)) == 1
    assert recent.find(("shop", "y" * 9_000)) is None
