"""Every cache of the package is declared, and made from its declaration."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

import extender
from extender.tables import LruTable, ShareTable, Table, caches, declare_cache
from tests.unit.declared_caches import declared_caches

N = TypeVar("N", bound=ast.AST)

PACKAGE = Path(extender.__file__).parent
FETCHERS = (PACKAGE / "fetcher", PACKAGE / "registry")
"""The rooms of the other process, whose size the kernel bounds."""
FILES = [
    file
    for file in sorted(PACKAGE.rglob("*.py"))
    if file != PACKAGE / "tables.py" and not any(map(file.is_relative_to, FETCHERS))
]
MEMOS = {"cache", "lru_cache", "alru_cache"}
MOST_MB = 300
TABLES = {"Table", "LruTable", "ShareTable", "OrderedDict"}


@pytest.fixture
def no_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has been declared, for tests that declare something."""
    monkeypatch.setattr("extender.tables._DECLARED", {})


@pytest.mark.usefixtures("no_caches")
def test_a_cache_is_made_from_its_declaration() -> None:
    """The declaration's bound is the cache's, unless whoever makes it gives another."""
    spec = declare_cache("test.tables.letters", key="letter", rows=2, most_mb=0.1)
    tables: list[Table[str, int] | LruTable[str, int]] = [Table(spec.bound()), LruTable(spec.bound())]
    for rows in tables:
        for number, letter in enumerate("abc"):
            rows.put(letter, number)
        assert [rows.get(letter) for letter in "abc"] == [None, 1, 2]


@pytest.mark.usefixtures("no_caches")
def test_a_cache_bounded_by_a_setting_needs_its_size() -> None:
    """Nothing else says how large it is."""
    spec = declare_cache("test.tables.numbers", key="number", most_mb=0.1)
    table: Table[int, int] = Table(spec.bound(1))
    assert [table.put(number, number) for number in range(3)] == [0, 1, 1]
    shares: ShareTable[int, int] = ShareTable(spec.bound(1), owner_of=lambda *_: "")
    shares.put(1, 1)
    assert shares.cost == 1
    with pytest.raises(TypeError, match=r"test\.tables\.numbers has no bound of its own"):
        spec.bound()


@pytest.mark.usefixtures("no_caches")
def test_a_name_stands_for_one_cache() -> None:
    """The same declaration may come twice, as from a module that is loaded again; another may not."""
    first = declare_cache("test.tables.twice", key="a", rows=1, most_mb=1)
    assert declare_cache("test.tables.twice", key="a", rows=1, most_mb=1) == first
    with pytest.raises(ValueError, match=r"two caches named test\.tables\.twice"):
        declare_cache("test.tables.twice", key="b", rows=1, most_mb=1)
    other = declare_cache("test.tables.another", key="a", rows=1, most_mb=1)
    assert caches() == (other, first)


def test_all_tables_of_the_service_fit_its_memory() -> None:
    """What they take at most, all together, leaves room beside them in a container of 512 MiB."""
    specs = declared_caches()
    assert len(specs) > 20
    assert all(spec.most_mb > 0 for spec in specs)
    assert sum(spec.most_mb for spec in specs) < MOST_MB


def test_every_cache_is_declared() -> None:
    """Whatever remembers is made by a declaration, or asks one for its rows."""
    found = {str(file): undeclared(ast.parse(file.read_text())) for file in FILES}
    assert {file: names for file, names in found.items() if names} == {}
    assert undeclared(ast.parse("rows = Table(7)\n@functools.lru_cache(None)\ndef read(text): ...")) != []


def test_declarations_are_named_after_their_file() -> None:
    """So that the table in the documentation leads to the code."""
    named = {
        name: ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
        for file in FILES
        for name in _declarations(ast.parse(file.read_text()))
    }
    assert {name: name.rpartition(".")[0] for name in named} == named
    assert set(named) == {spec.name for spec in declared_caches()}


def undeclared(tree: ast.Module) -> list[str]:
    """What makes a cache in this module without asking a declaration for its bound."""
    imports = list(_nodes(tree, ast.ImportFrom))
    foreign = {alias.name for node in imports if node.module == "rich.table" for alias in node.names}
    makers = (TABLES | MEMOS | _subclasses(tree) | {"CacheSpec"}) - foreign
    declared = _declared(tree).union(*map(_imported_declarations, imports))
    made = [
        _name(node.func) for node in _nodes(tree, ast.Call) if _name(node.func) in makers and not _asks(node, declared)
    ]
    decorators = [
        _name(decorator)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for decorator in node.decorator_list
        if _name(decorator) in MEMOS and not (_name(decorator) == "cache" and not ast.unparse(node.args))
    ]
    return made + decorators


def _asks(call: ast.Call, declared: set[str]) -> bool:
    """Whether an argument is, or is worked out from, the bound of a declaration; or calls are shared and not kept."""
    return any(ast.unparse(keyword) == "ttl=0" for keyword in call.keywords) or any(
        isinstance(node, ast.Attribute) and node.attr in ("rows", "bound") and _name(node.value) in declared
        for argument in [*call.args, *(keyword.value for keyword in call.keywords)]
        for node in ast.walk(argument)
    )


def _declared(tree: ast.Module) -> set[str]:
    """The module's names for its own declarations."""
    return {
        _name(node.targets[0])
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and _name(node.value.func) == "declare_cache"
    }


def _imported_declarations(node: ast.ImportFrom) -> set[str]:
    """Of the names that are imported, those that a module of ours has for its declarations."""
    file = PACKAGE.parent / f"{(node.module or '').replace('.', '/')}.py"
    there = _declared(ast.parse(file.read_text())) if file in FILES else set[str]()
    return there & {alias.name for alias in node.names}


def _declarations(tree: ast.Module) -> Iterator[str]:
    """The names of the caches that a module declares."""
    for node in _nodes(tree, ast.Call):
        if _name(node.func) == "declare_cache":
            yield ast.literal_eval(node.args[0])


def _nodes(tree: ast.AST, kind: type[N]) -> Iterator[N]:
    return (node for node in ast.walk(tree) if isinstance(node, kind))


def _name(node: ast.AST) -> str:
    """The last name of `functools.lru_cache`, `LruTable[str, int]`, `Table`."""
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            return node.attr
        case ast.Subscript():
            return _name(node.value)
    return ""


def _subclasses(tree: ast.Module) -> set[str]:
    """The classes of the module that are tables."""
    return {node.name for node in _nodes(tree, ast.ClassDef) if TABLES & set(map(_name, node.bases))}
