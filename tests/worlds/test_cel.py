"""Expressions as the shipped policies have them, with the values that cel-go gives them."""

from typing import Any

import pytest

from tests.worlds.cel import CelError, compile_cel

SCOPE: dict[str, Any] = {
    "object": {"spec": {"gates": [{"name": "a"}, {"name": "b"}], "node": ""}, "metadata": {"labels": {"x": "y"}}},
    "old": None,
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("'a' + \"b\" == 'ab' && size([1, 2]) == 2", True),
        ("!(1 in [2, 3]) && 'x' in object.metadata.labels", True),
        ("has(object.spec.node) && !has(object.spec.missing)", True),
        ("object.spec.?missing.orValue('none')", "none"),
        ("object.metadata.?annotations[?'a'].orValue('')", ""),
        ("object.metadata.?labels[?'x'].orValue('')", "y"),
        ("object.metadata.?labels[?'x'] == optional.of(object.metadata.labels['x'])", True),
        ("object.spec.?a == object.metadata.?b", True),
        ("old.?spec.?gates.orValue([])", []),
        ("object.spec.gates.exists(g, g.name == 'b')", True),
        ("object.spec.gates.all(g, g.name == 'b')", False),
        ("object.spec.gates.filter(g, g.name != 'b').map(g, g.name)", ["a"]),
        ("object.spec.all(key, key in ['gates', 'node'])", True),
        ("['multi', 'other'].filter(k, k.startsWith('mul'))", ["multi"]),
        ("true ? [1] : [2, 3]", [1]),
        ("false ? 1 : true ? 2 : 3", 2),
        ("[JSONPatch{op: 'add', path: '/a~1b', value: {'k': dyn(true)}}]",
         [{"op": "add", "path": "/a~1b", "value": {"k": True}}]),
        ("false && object.missing == 1", False),
        ("object.missing == 1 && false", False),
        ("object.missing == 1 || true", True),
        ("[1, 2].exists(n, n == 2 || object.missing == n)", True),
        ("[1, 2].all(n, n == 2 && object.missing == n)", False),
    ],
)  # fmt: skip
def test_expression_has_this_value(text: str, value: object) -> None:
    assert compile_cel(text)(SCOPE) == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("object.missing", "no such key: missing"),
        ("object.missing == 1 || false", "no such key: missing"),
        ("old.spec", "no such overload"),
        ("nobody.spec", "undeclared reference to 'nobody'"),
        ("[1].all(n, object.missing == n)", "no such key"),
        ("has(object.missing.deeper)", "no such key"),
    ],
)
def test_expression_has_no_value(text: str, why: str) -> None:
    with pytest.raises(CelError, match=why):
        compile_cel(text)(SCOPE)


@pytest.mark.parametrize("text", ["a.unknownMethod()", "unknown(1)", "a b", "[1", "'open", "a ? b", "@"])
def test_what_is_not_known_is_not_compiled(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        compile_cel(text)
