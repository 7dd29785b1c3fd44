"""The architecture page names the rooms that are there."""

import re

from tests.unit.docs.pages import PROJECT, page


def test_the_rooms_are_those_of_the_package() -> None:
    """Each folder of the package has its row."""
    rooms = {path.name for path in (PROJECT / "extender").iterdir() if (path / "__init__.py").exists()}
    table = page("architecture.md").partition("## Rooms\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)/` \|", table, re.MULTILINE)) == rooms
