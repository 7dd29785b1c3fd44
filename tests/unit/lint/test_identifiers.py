"""The lint of identifiers: it finds given-up words wherever a name is defined or used, and classes of one name."""

from pathlib import Path

import pytest

from tests.lint.identifiers import Settings, check, findings

WORDS = {"Wishes": "Overrides", "*_at_once": "*_nowait", "place": "endpoint", "rest": "remainder"}


def _found(*sources: str, settings: Settings | None = None) -> list[str]:
    """What is found in `room/0.py`, `room/1.py` and so on."""
    settings = settings or Settings(folders=["room"], one_class_a_name=["room"])
    texts = {f"room/{number}.py": source for number, source in enumerate(sources)}
    return [str(finding) for finding in check(texts, settings, WORDS)]


@pytest.mark.parametrize(
    "source",
    [
        "class Wishes: ...",
        "def wait_at_once(): ...",
        "async def _wait_at_once(): ...",
        "place = 1",
        "print(place)",
        "def f(place): ...",
        "def f(*place): ...",
        "f(place=1)",
        "lambda place: 1",
        "self._place = 1",
        "other.place",
        "import thing as place",
        "from thing import place",
        "try: ...\nexcept OSError as place: ...",
        "match thing:\n    case {**rest}: ...",
        "match thing:\n    case [*rest]: ...",
        "match thing:\n    case Thing(place=1): ...",
        "def f():\n    global place",
        "[1 for place in things]",
        "f'{place}'",
    ],
)
def test_a_given_up_word_is_found(source: str) -> None:
    """As a definition, a parameter, an attribute, a target, an import or a use; with underscores before it too."""
    (line,) = _found(source)
    assert ": write " in line


def test_a_finding_says_where_and_what_to_write() -> None:
    """By file and line, as editors and CI read them."""
    assert _found("\n\nclass Wishes: ...") == ["room/0.py:3: Wishes: write Overrides"]


@pytest.mark.parametrize(
    "source",
    [
        "placement = replace = wishes = 1",
        "'place'  # place",
        "def test_a_place_is_named(): ...",
        "from kubernetes_asyncio.client.rest import RESTClientObject",
        "log.info('thing.happened', place=1)",
    ],
)
def test_other_names_and_words_of_sentences_are_free(source: str) -> None:
    """Patterns match whole names, with case; the rest is text or other people's."""
    assert _found(source) == []


def test_a_file_may_not_be_named_after_a_given_up_word() -> None:
    """The name of a module is an identifier wherever it is imported."""
    (finding,) = check({"room/place.py": ""}, Settings(folders=["room"]), WORDS)
    assert str(finding) == "room/place.py:1: place: write endpoint"


def test_two_classes_of_one_name_are_found() -> None:
    """Public or private, nested or not; in one room or in two."""
    sources = ("class Reply: ...", "class Other:\n    class _Reply: ...")
    assert _found(*sources) == ["room/1.py:2: Reply: another class of this name is at room/0.py:1"]
    elsewhere = Settings(folders=["room"], one_class_a_name=["hall"])
    assert _found(*sources, settings=elsewhere) == []


def test_what_is_excused_is_not_told_unless_there_is_nothing_to_excuse() -> None:
    """A list of exceptions that are none any more would hide the next one."""
    settings = Settings(
        folders=["room"], one_class_a_name=["room"], shared_names=["Reply", "Row"], pending=["room/0.py", "room/1.py"]
    )
    sources = ("class Reply: ...\nplace = 1", "class Reply: ...")
    assert _found(*sources, settings=settings) == [
        f"pyproject.toml:1: {excuse}: take it off [tool.identifiers]: it excuses nothing"
        for excuse in ("Row", "room/1.py")
    ]


def test_settings_are_those_of_the_checkout(tmp_path: Path) -> None:
    """Its pyproject.toml says which folders are searched, and for what."""
    (tmp_path / "pyproject.toml").write_text(
        '[tool.identifiers]\nfolders = ["room"]\n[tool.words]\nplace = "endpoint"\n'
    )
    for folder in ("room/inner", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "file.py").write_text("place = 1\n")
    assert list(map(str, findings(tmp_path))) == ["room/inner/file.py:1: place: write endpoint"]
