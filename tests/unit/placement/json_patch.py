"""A small, strict implementation of RFC 6902, which applies our patches as an API server does."""

import copy
from typing import Any

import msgspec


def apply(document: Any, patch: bytes) -> Any:
    """Returns `document` after `patch` (empty: unchanged); raises at any step that RFC 6902 calls an error."""
    document = msgspec.json.decode(msgspec.json.encode(document))  # a copy that shares no part with the original
    for operation in msgspec.json.decode(patch or b"[]"):
        document = _step(document, operation)
    return document


def _step(document: Any, operation: dict[str, Any]) -> Any:
    assert operation["op"] in ("add", "remove", "replace"), operation
    assert ("value" in operation) == (operation["op"] != "remove"), operation
    tokens = [token.replace("~1", "/").replace("~0", "~") for token in operation["path"].split("/")[1:]]
    if not tokens:
        return copy.deepcopy(operation["value"])
    parent = document
    for token in tokens[:-1]:
        parent = parent[_index(token, len(parent) - 1)] if isinstance(parent, list) else parent[token]
    if isinstance(parent, list):
        _change_list(parent, tokens[-1], operation)
    else:
        assert isinstance(parent, dict), operation
        _change_object(parent, tokens[-1], operation)
    return document


def _change_list(parent: list[Any], token: str, operation: dict[str, Any]) -> None:
    if operation["op"] == "add":
        parent.insert(len(parent) if token == "-" else _index(token, len(parent)), copy.deepcopy(operation["value"]))
    elif operation["op"] == "remove":
        del parent[_index(token, len(parent) - 1)]
    else:
        parent[_index(token, len(parent) - 1)] = copy.deepcopy(operation["value"])


def _change_object(parent: dict[str, Any], token: str, operation: dict[str, Any]) -> None:
    assert operation["op"] == "add" or token in parent, operation
    if operation["op"] == "remove":
        del parent[token]
    else:
        parent[token] = copy.deepcopy(operation["value"])


def _index(token: str, highest: int) -> int:
    assert token.isdigit(), token
    assert token == "0" or token[0] != "0", token
    assert int(token) <= highest, token
    return int(token)
