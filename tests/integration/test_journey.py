"""The journey of a call is traced in the real process."""

from collections.abc import Mapping, Sequence

import pytest

from benchmarks.journey import COLD, FETCHER, RELEASE, REVIEW, SERVICE, WARM, Function, crossed_functions
from tools.docs.pages import page
from tools.docs.tables import JOURNEYS, journey_table, split_at_table

pytestmark = pytest.mark.slow  # every call of these is traced


@pytest.fixture(scope="module")
def crossed() -> Mapping[str, Sequence[Function]]:
    """The functions of each journey, traced once."""
    return crossed_functions()


@pytest.mark.parametrize("name", JOURNEYS[1])
def test_page_names_the_files_that_are_crossed(crossed: Mapping[str, Sequence[Function]], name: str) -> None:
    """`make tables` traces the journeys again and writes them."""
    assert split_at_table(page(JOURNEYS[0]), name)[1] == journey_table(crossed[name])


def test_only_what_memory_lacks_is_fetched(crossed: Mapping[str, Sequence[Function]]) -> None:
    """The decision is made on every journey, and registries are asked in the fetcher on those with an unknown image."""
    for name in JOURNEYS[1]:
        assert (SERVICE, "placement/facts.py") in {each[:2] for each in crossed[name]}
        asked = {each.process for each in crossed[name] if each.file.startswith("registry/")}
        assert asked == ({FETCHER} if name in (COLD, RELEASE) else set())
    assert {each.process for name in (WARM, REVIEW) for each in crossed[name]} == {SERVICE}
