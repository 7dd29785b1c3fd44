"""The documentation can be read: short pages, short lines, links that lead somewhere, a place in the site for each."""

import re
from typing import Any
from urllib.parse import urlsplit

import yaml

from tools.docs.pages import ALL, DOCS, PAGES, PROJECT, README, anchors, links, name_of, without_blocks

README_WORDS, PAGE_WORDS, LINE_CHARACTERS = 900, 1500, 120
_MODULE = re.compile(r"python -m ([a-z_.]+)")
_MADE = re.compile(r"<!-- (?P<name>[\w ]+)(?::[^>]*)? -->\n.*?<!-- (?P=name) end -->", re.DOTALL)
_PAGE = re.compile(r"docs/((?:how-to/|modes/|runbooks)[\w/.-]*\.md)(?:#([\w-]+))?")
_PATH = re.compile(r"`((?:benchmarks|deploy|docs|extender|testbed|tests)/[\w./-]+)`")


def test_the_readme_is_short() -> None:
    """At most 900 words, as `wc -w` counts them."""
    assert len(README.read_text().split()) <= README_WORDS


def test_pages_are_short() -> None:
    """At most 1,500 words each, as `wc -w` counts them, but for tables that are made from code."""
    written = {name_of(path): _MADE.sub("", path.read_text()) for path in PAGES}
    assert [name for name, text in written.items() if len(text.split()) > PAGE_WORDS] == []


def test_lines_of_prose_fit() -> None:
    """Tables and blocks of code may be wider, and so may a line that is one link."""
    lines = [(name_of(path), line) for path in ALL for line in without_blocks(path.read_text()).splitlines()]
    prose = [each for each in lines if not re.match(r"\s*\||!?\[.*\]\(\S+\)$", each[1])]
    assert [each for each in prose if len(each[1]) > LINE_CHARACTERS] == []


def test_links_lead_somewhere() -> None:
    """Each file is there, and each heading in it."""
    for path in ALL:
        for link in links(path.read_text()):
            target = urlsplit(link)
            if target.scheme:
                continue
            file = path.parent / target.path if target.path else path
            assert file.exists(), (name_of(path), link)
            if target.fragment:
                assert target.fragment in anchors(file.read_text()), (name_of(path), link)


def test_every_page_is_in_the_site() -> None:
    """And the site names no page that there is not."""
    assert sorted(DOCS / name for name in _named(_site()["nav"])) == sorted(PAGES)


def test_modules_named_in_the_text_exist() -> None:
    """Every `python -m` is of a module that is in the checkout."""
    for path in ALL:
        for module in _MODULE.findall(path.read_text()):
            file = PROJECT / module.replace(".", "/")
            assert file.with_suffix(".py").exists() or (file / "__main__.py").exists(), (name_of(path), module)


def test_files_named_in_the_text_exist() -> None:
    """Every path in the checkout's folders, but those with a NAME to fill in."""
    for path in ALL:
        for named in _PATH.findall(path.read_text()):
            assert "NAME" in named or (PROJECT / named).exists(), (name_of(path), named)


def test_pages_named_by_code_and_manifests_exist() -> None:
    """And so does the section that is named with one."""
    folders = ("extender", "deploy")
    files = [found for folder in folders for found in (PROJECT / folder).rglob("*") if found.is_file()]
    for path in (found for found in files if found.suffix != ".pyc"):  # which may be of code that has changed
        for page, section in _PAGE.findall(path.read_text(errors="replace")):
            assert (DOCS / page).exists(), (name_of(path), page)
            assert not section or section in anchors((DOCS / page).read_text()), (name_of(path), page, section)


def _site() -> dict[str, Any]:
    site: dict[str, Any] = yaml.safe_load((PROJECT / "mkdocs.yml").read_text())
    return site


def _named(nav: object) -> list[str]:
    """The pages of a navigation, which is a page, a list, or a title with either."""
    match nav:
        case str():
            return [nav]
        case list():
            return [name for item in nav for name in _named(item)]
        case dict():
            return [name for item in nav.values() for name in _named(item)]
    raise TypeError(nav)
