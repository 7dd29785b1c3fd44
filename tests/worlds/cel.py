"""Evaluates the Common Expression Language as far as the shipped policies and match conditions use it.

Specification: https://github.com/google/cel-spec/blob/master/doc/langdef.md, with optional values
(cel-go, `cel.OptionalTypes`) and `JSONPatch{…}` of Kubernetes. Limits: no numbers but integers, no types, no cost, and
nothing is checked before it is evaluated. What is not known raises ValueError when an expression is compiled.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

Scope = Mapping[str, Any]
Evaluate = Callable[[Scope], Any]


class CelError(Exception):
    """The expression has no value."""


class Optional(NamedTuple):
    """A value that may be there."""

    is_there: bool
    value: Any = None


NONE = Optional(False)


class Variables:
    """The variables of a policy; each is evaluated once, when it is first used."""

    def __init__(self, expressions: Mapping[str, str], scope: Scope) -> None:
        self._expressions = expressions
        self._scope = {**scope, "variables": self}
        self._found: dict[str, Any] = {}

    def get(self, name: str) -> Any:
        """The value. Raises CelError."""
        if name not in self._found:
            if name not in self._expressions:
                raise CelError(f"undefined field '{name}'")
            self._found[name] = compile_cel(self._expressions[name])(self._scope)
        return self._found[name]


_TOKEN = re.compile(
    r"""\s*(?:(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<number>\d+)|(?P<name>[A-Za-z_]\w*)"""
    r"""|(?P<sign>&&|\|\||==|!=|<=|>=|\.\?|\[\?|[-+<>!?:.,()\[\]{}]))"""
)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at, text = 0, text.strip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            raise ValueError(f"cannot read {text[at : at + 20]!r}")
        yield found.lastgroup, found.group(found.lastgroup)
        at = found.end()
    yield "end", ""


@functools.lru_cache(maxsize=512)
def compile_cel(text: str) -> Evaluate:
    """The expression as a function of its scope, which raises CelError where it has no value."""
    parser = _Parser(list(_tokens(text)))
    evaluate = parser.expression()
    parser.expect("")
    return evaluate


class _Parser:
    """Recursive descent, one method for each level of precedence."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._at = 0

    def _peek(self) -> str:
        kind, text = self._tokens[self._at]
        return text if kind in ("sign", "name", "end") else ""

    def _next(self) -> tuple[str, str]:
        self._at += 1
        return self._tokens[self._at - 1]

    def _takes(self, text: str) -> bool:
        is_next = self._peek() == text
        self._at += is_next
        return is_next

    def expect(self, text: str) -> None:
        """Passes over the token; the empty one is the end."""
        kind, found = self._next()
        if found != text or (text == "") is not (kind == "end"):
            raise ValueError(f"{found!r} where {text!r} was expected")

    def expression(self) -> Evaluate:
        condition = self._or()
        if not self._takes("?"):
            return condition
        then = self._or()
        self.expect(":")
        other = self.expression()
        return lambda scope: then(scope) if condition(scope) else other(scope)

    def _or(self) -> Evaluate:
        left = self._and()
        while self._takes("||"):
            left = _either(left, self._and(), decisive=True)
        return left

    def _and(self) -> Evaluate:
        left = self._relation()
        while self._takes("&&"):
            left = _either(left, self._relation(), decisive=False)
        return left

    def _relation(self) -> Evaluate:
        left = self._sum()
        while (sign := self._peek()) in _RELATIONS:
            self._next()
            left = _applied(_RELATIONS[sign], left, self._sum())
        return left

    def _sum(self) -> Evaluate:
        left = self._unary()
        while self._takes("+"):
            left = _applied(lambda one, other: one + other, left, self._unary())
        return left

    def _unary(self) -> Evaluate:
        if self._takes("!"):
            negated = self._unary()
            return lambda scope: not negated(scope)
        return self._member()

    def _member(self) -> Evaluate:
        value = self._primary()
        while True:
            if self._takes("."):
                value = self._named(value, self._next()[1])
            elif self._takes(".?"):
                value = _selected(value, _constant(self._next()[1]), is_optional=True)
            elif self._takes("[?"):
                value = _selected(value, self.expression(), is_optional=True)
                self.expect("]")
            elif self._takes("["):
                value = _selected(value, self.expression(), is_optional=False)
                self.expect("]")
            else:
                return value

    def _named(self, value: Evaluate, name: str) -> Evaluate:
        """A field, or a call of a method or macro."""
        if not self._takes("("):
            return _selected(value, _constant(name), is_optional=False)
        if name in _MACROS:
            variable = self._next()[1]
            self.expect(",")
            body = self.expression()
            self.expect(")")
            macro = _MACROS[name]
            return lambda scope: macro(value(scope), lambda item: body({**scope, variable: item}))
        arguments = self._listed(")")
        if name not in _METHODS:
            raise ValueError(f"no method {name}")
        method = _METHODS[name]
        return lambda scope: method(value(scope), *(each(scope) for each in arguments))

    def _primary(self) -> Evaluate:
        kind, text = self._next()
        if kind == "string":
            return _constant(re.sub(r"\\(.)", r"\1", text[1:-1]))
        if kind == "number":
            return _constant(int(text))
        if text == "(":
            inner = self.expression()
            self.expect(")")
            return inner
        if text == "[":
            items = self._listed("]")
            return lambda scope: [each(scope) for each in items]
        if text == "{":
            return self._mapping(is_message=False)
        if kind == "name":
            return self._identifier(text)
        raise ValueError(f"{text!r} begins no value")

    def _identifier(self, name: str) -> Evaluate:
        if name in _CONSTANTS:
            return _constant(_CONSTANTS[name])
        if self._takes("{"):
            return self._mapping(is_message=True)
        if self._takes("("):
            if name == "has":
                return self._presence()
            arguments = self._listed(")")
            if name not in _FUNCTIONS:
                raise ValueError(f"no function {name}")
            function = _FUNCTIONS[name]
            return lambda scope: function(*(each(scope) for each in arguments))

        def find(scope: Scope) -> Any:
            if name not in scope:
                raise CelError(f"undeclared reference to '{name}'")
            return scope[name]

        return find

    def _presence(self) -> Evaluate:
        """`has(a.b.c)`: whether what `a.b` is has a `c`."""
        value = self._primary()
        name = ""
        while self._takes("."):
            if name:
                value = _selected(value, _constant(name), is_optional=False)
            name = self._next()[1]
        self.expect(")")
        return lambda scope: _select(value(scope), name, is_optional=True).is_there

    def _listed(self, end: str) -> list[Evaluate]:
        found: list[Evaluate] = []
        while not self._takes(end):
            found.append(self.expression())
            if not self._takes(","):
                self.expect(end)
                break
        return found

    def _mapping(self, *, is_message: bool) -> Evaluate:
        pairs: list[tuple[Evaluate, Evaluate]] = []
        while not self._takes("}"):
            key = _constant(self._next()[1]) if is_message else self.expression()
            self.expect(":")
            pairs.append((key, self.expression()))
            if not self._takes(","):
                self.expect("}")
                break
        return lambda scope: {key(scope): value(scope) for key, value in pairs}


def _constant(value: Any) -> Evaluate:
    return lambda _: value


def _applied(function: Callable[[Any, Any], Any], left: Evaluate, right: Evaluate) -> Evaluate:
    return lambda scope: function(left(scope), right(scope))


def _either(left: Evaluate, right: Evaluate, *, decisive: bool) -> Evaluate:
    """`||` and `&&`: one side that decides makes up for an error of the other."""

    def evaluate(scope: Scope) -> bool:
        try:
            if bool(left(scope)) is decisive:
                return decisive
        except CelError:
            if bool(right(scope)) is decisive:
                return decisive
            raise
        return bool(right(scope))

    return evaluate


def _selected(value: Evaluate, key: Evaluate, *, is_optional: bool) -> Evaluate:
    return lambda scope: _select(value(scope), key(scope), is_optional=is_optional)


def _select(value: Any, key: Any, *, is_optional: bool) -> Any:
    """The field or item; of an optional value and with `?` it is optional too."""
    if isinstance(value, Optional):
        return _select(value.value, key, is_optional=True) if value.is_there else NONE
    if isinstance(value, Variables):
        return value.get(key)
    if value is None and is_optional:
        return NONE
    if not isinstance(value, dict | list):
        raise CelError(f"no such overload: a field '{key}' of {value!r}")
    is_there = key in value if isinstance(value, dict) else 0 <= key < len(value)
    if is_optional:
        return Optional(True, value[key]) if is_there else NONE
    if not is_there:
        raise CelError(f"no such key: {key}")
    return value[key]


def all_met(items: Iterable[Any], is_met: Callable[[Any], Any]) -> bool:
    """Whether it is true of all items. One of which it is false makes up for an error of another. Raises CelError."""
    error: CelError | None = None
    for item in items:
        try:
            if not is_met(item):
                return False
        except CelError as exc:
            error = exc
    if error:
        raise error
    return True


def _or_value(value: Optional, other: Any) -> Any:
    return value.value if value.is_there else other


_MACROS: dict[str, Callable[[Any, Callable[[Any], Any]], Any]] = {
    "all": all_met,
    "exists": lambda items, is_met: not all_met(items, lambda item: not is_met(item)),
    "filter": lambda items, is_met: [item for item in items if is_met(item)],
    "map": lambda items, change: [change(item) for item in items],
}
_METHODS: dict[str, Callable[..., Any]] = {
    "orValue": _or_value,
    "hasValue": lambda value: value.is_there,
    "startsWith": lambda text, beginning: text.startswith(beginning),
    "endsWith": lambda text, end: text.endswith(end),
    "contains": lambda text, part: part in text,
    "size": len,
    "of": lambda _, value: Optional(True, value),
    "none": lambda _: NONE,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"size": len, "string": str, "dyn": lambda value: value}
_CONSTANTS = {"true": True, "false": False, "null": None, "optional": "optional"}
_RELATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": lambda one, other: one == other,
    "!=": lambda one, other: one != other,
    "in": lambda one, other: one in other,
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}
