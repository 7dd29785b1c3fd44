"""The architecture page names the rooms and files that are there."""

import re

from tools.docs.pages import PROJECT, page
from tools.docs.tables import JOURNEYS, split_at_table

PAGE = page("architecture.md")


def test_the_rooms_are_those_of_the_package() -> None:
    """Each folder of the package has its row."""
    rooms = {path.name for path in (PROJECT / "extender").iterdir() if (path / "__init__.py").exists()}
    table = PAGE.partition("## Rooms\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)/` \|", table, re.MULTILINE)) == rooms


def test_a_journey_tells_of_files_that_it_crosses() -> None:
    """What stands above a table names files of the table."""
    for name in JOURNEYS[1]:
        before, table, _ = split_at_table(PAGE, name)
        told = set(re.findall(r"`(\w+\.py)`", before.rpartition("\n### ")[2]))
        assert told
        assert told <= set(re.findall(r"`(\w+\.py)`", table))
