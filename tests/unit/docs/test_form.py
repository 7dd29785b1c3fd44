"""What the documentation, code and manifests name is there."""

import re
from urllib.parse import urlsplit

from tools.docs.commands import blocks_of_commands
from tools.docs.pages import ALL, DOCS, PROJECT, anchors, links, name_of, without_blocks

_MODULE = re.compile(r"python -m ([a-z_.]+)")
_PAGE = re.compile(r"docs/((?:how-to/|modes/|runbooks)[\w/.-]*\.md)(?:#([\w-]+))?")
_PATH = re.compile(r"`((?:benchmarks|deploy|docs|extender|testbed|tests)/[\w./-]+)`")


def test_links_of_files_outside_the_site_lead_somewhere() -> None:
    """`mkdocs build --strict` looks at those of the site."""
    for path in ALL:
        for target in map(urlsplit, () if DOCS in path.parents else links(path.read_text())):
            file = path.parent / target.path if target.path else path
            assert target.scheme or file.exists(), (name_of(path), target.geturl())
            assert target.scheme or not target.fragment or target.fragment in anchors(file.read_text())


def test_tables_are_whole() -> None:
    """An empty line ends a table: what follows is shown as text with bars."""
    for path in ALL:
        for head in re.findall(r"(?<!\|\n)^(\|.*\|\n.*)$", without_blocks(path.read_text()), re.MULTILINE):
            assert re.fullmatch(r"\|.*\|\n\|[-:| ]+\|", head), (name_of(path), head)


def test_pages_that_type_the_command_say_how_it_is_installed() -> None:
    """By a link, or themselves. The quickstart has it from the control plane that it starts."""
    typing = {
        each.page
        for each in blocks_of_commands()
        if any(re.search(r"(?:^|\| )multiarch-extender [a-z]", command) for command in each.commands)
    }
    assert len(typing) > 15
    for page in typing - {"docs/quickstart.md", "docs/command-line.md"}:
        text = (PROJECT / page).read_text()
        assert "command-line.md#install-it" in text or "pipx install ." in text, page


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
