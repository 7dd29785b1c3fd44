"""What may have ended a fetcher is asked for alone, tenants in turns."""

from extender.fetcher.fetcher_client import Suspects
from extender.images.reference import parse_reference
from testbed.clock import Clock

APP, OTHER = parse_reference("quay.io/team/app:1"), parse_reference("quay.io/team/other:1")


def test_tenants_take_turns_whoever_has_more() -> None:
    """A tenant waits for one question of each other tenant, and not for all of them."""
    suspects = Suspects[str](Clock())
    for number in range(50):
        suspects.add("mallory", f"m{number}")
    for tenant in ("shop", "team"):
        for number in range(2):
            suspects.add(tenant, f"{tenant}{number}")
    order = [suspects.next() for _ in range(54)]
    assert order[:7] == ["m0", "shop0", "team0", "m1", "shop1", "team1", "m2"]
    assert order[-1] == "m49"
    assert suspects.next() is None


def test_question_that_is_put_back_is_its_tenants_next() -> None:
    """After the others' turns."""
    suspects = Suspects[str](Clock())
    for question in ("m0", "m1"):
        suspects.add("mallory", question)
    suspects.add("shop", "s0")
    assert suspects.next() == "m0"
    suspects.put_back("mallory", "m0")
    assert [suspects.next() for _ in range(4)] == ["s0", "m0", "m1", None]


def test_suspicion_ends_by_an_answer_or_in_time() -> None:
    """Five minutes, within which the image is asked for alone at once."""
    clock = Clock()
    suspects = Suspects[str](clock)
    for image in (APP, OTHER):
        suspects.suspect(image)
    suspects.clear(APP)
    assert [suspects.is_suspect(image) for image in (APP, OTHER)] == [False, True]
    clock.advance(300)
    assert not suspects.is_suspect(OTHER)


def test_memory_is_bounded() -> None:
    """Whoever ends fetchers with many names has the oldest asked for beside others again."""
    suspects = Suspects[str](Clock(), size=2)
    images = [parse_reference(f"quay.io/team/app:{number}") for number in range(3)]
    for image in images:
        suspects.suspect(image)
    assert [suspects.is_suspect(image) for image in images] == [False, True, True]
