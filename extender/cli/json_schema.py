"""The JSON schemas of what commands print."""

import inspect
import json

import msgspec


def schema_of(kind: type) -> str:
    """The JSON schema of the kind, as text."""
    return json.dumps(_cleaned(msgspec.json.schema(kind)), indent=2)


def _cleaned(schema: object) -> object:
    """The schema with descriptions that have no indentation, as from Python 3.13 on docstrings have none."""
    if isinstance(schema, list):
        return [_cleaned(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    texts = {
        key: inspect.cleandoc(each) for key, each in schema.items() if key == "description" and isinstance(each, str)
    }
    return {key: _cleaned(each) for key, each in schema.items()} | texts
