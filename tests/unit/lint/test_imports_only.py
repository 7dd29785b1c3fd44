"""The import contract that allows what it names: it finds every other import, and nothing else."""

import pytest
from grimp import ImportGraph

from tests.lint.imports_only import ImportsOnly


def _foreign(imports: dict[str, list[str]], **options: object) -> list[str]:
    """What the contract of package `pure`, which may import `msgspec` and `pure`, finds in these imports."""
    graph = ImportGraph()
    graph.add_module("pure")
    for importer, modules in imports.items():
        graph.add_module(importer)
        for imported in modules:
            graph.add_module(imported)
            graph.add_import(importer=importer, imported=imported)
    options = {"source_modules": ["pure"], "may_import": ["msgspec", "pure"], **options}
    result = ImportsOnly(name="pure", session_options={}, contract_options=options).check(graph, verbose=False)
    foreign = result.metadata["foreign"]
    assert result.kept is not bool(foreign)
    return list(foreign)


def test_named_packages_and_what_lies_below_them_may_be_imported() -> None:
    """A name covers its submodules; a package whose name only begins alike is another one."""
    assert _foreign({"pure.a": ["msgspec.json", "msgspec", "pure.b"]}) == []
    assert _foreign({"pure.a": ["msgspecs"]}) == ["pure.a -> msgspecs"]


def test_whoever_is_not_a_source_imports_what_it_likes() -> None:
    """The contract is about its source modules."""
    assert _foreign({"impure": ["aiohttp"]}) == []


@pytest.mark.parametrize(("standard_library", "foreign"), [("false", ["pure.a.b -> os"]), ("true", [])])
def test_the_standard_library_is_allowed_as_a_whole_or_by_name(standard_library: str, foreign: list[str]) -> None:
    """Without the option, `os` is a foreign module like any other."""
    assert _foreign({"pure.a.b": ["os"]}, standard_library=standard_library) == foreign
