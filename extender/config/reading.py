"""Reads the settings from a YAML file and `--set`, and reports all that is wrong with them at once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec import inspect

from extender.bounded_yaml import InvalidYaml
from extender.config.checks import name_problems, problems_of
from extender.config.fitting import Fitting, field_of, is_section, is_text, members_of
from extender.config.tree import Config
from extender.errors import ConfigError
from extender.yaml_values import PlainText, read_texts

_CONFIG = inspect.type_info(Config)


def load_config(file: str | None, assignments: Sequence[str] = (), *, option: str = "--config") -> Config:
    """The settings, checked as a whole: `--set path=value` overrides the YAML file, which overrides the defaults.

    `option` is the one that names the file.

    Raises:
        ConfigError: the file cannot be read, a key is unknown or there twice, a value is wrong, or values contradict
            each other. The message has a line for each, which names the key's path, the value and what would be right.
    """
    config = read_config(file, assignments, option=option)
    if problems := list(problems_of(config)):
        raise ConfigError(*problems)
    return config


def read_config(file: str | None, assignments: Sequence[str] = (), *, option: str = "--config") -> Config:
    """As `load_config`, without the check whether values contradict each other; the command `config` prints these."""
    return _convert(_read_file(file, option) if file else {}, assignments)


def parse_config(text: str | bytes, file: str, assignments: Sequence[str] = ()) -> Config:
    """As `read_config`, of the text of the file."""
    return _convert(_parse(text, file), assignments)


def to_yaml(config: object) -> str:
    """The whole Config, or what it is made of, as YAML, defaults included; reading it back gives an equal Config."""
    return yaml.safe_dump(msgspec.to_builtins(config), sort_keys=False, width=120)


def _read_file(file: str, option: str) -> dict[str, Any]:
    try:
        return _parse(Path(file).read_bytes(), file)
    except OSError as exc:
        raise ConfigError(f"{file}: {exc.strerror}; {option} takes a readable YAML file") from exc


def _parse(text: str | bytes, file: str) -> dict[str, Any]:
    try:
        tree = read_texts(text)
    except InvalidYaml as exc:
        raise ConfigError(f"{file} is no YAML of settings: {exc}") from exc
    if tree is None or (isinstance(tree, PlainText) and tree.is_null):
        return {}
    if not isinstance(tree, dict):
        form = "a list" if isinstance(tree, list) else "a text"
        raise ConfigError(f"{file} holds {form}; it must be a map such as `scheduler: {{…}}`")
    return tree


def _convert(tree: dict[str, Any], assignments: Sequence[str]) -> Config:
    fitting = Fitting()
    for assignment in assignments:
        try:
            tree = _assigned(tree, _CONFIG, *_parsed(assignment))
        except ConfigError as exc:
            fitting.problems += exc.problems
    fitted = fitting.fit(tree, _CONFIG)
    if fitting.problems:
        raise ConfigError(*fitting.problems)
    config = msgspec.convert(fitted, Config)
    if problems := list(name_problems(config)):
        raise ConfigError(*problems)
    return config


def _parsed(assignment: str) -> tuple[Sequence[str], Any]:
    """The keys and the value of `path=value`. The key of a map may have dots, as that of a label."""
    path, equals, text = assignment.partition("=")
    keys = path.split(".")
    if not equals or not all(keys):
        shown = path.partition(":")[0]  # whatever follows may be a URL with a login
        raise ConfigError(f"--set {shown}: write path=value, for example --set scheduler.wait_seconds=0.2")
    kind: inspect.Type | None = _CONFIG
    for at, key in enumerate(keys):
        maps = [each for each in members_of(kind) if isinstance(each, inspect.DictType)] if kind else []
        if maps:
            keys, kind = [*keys[:at], ".".join(keys[at:])], maps[0].value_type
            break
        kind = field_of(kind, key)
    try:
        value = read_texts(text)
    except InvalidYaml as exc:
        if not is_text(kind):
            raise ConfigError(f"--set {path}: {text!r} is no YAML value: {exc}") from exc
        value = None
    if is_text(kind) and (not isinstance(value, str) or isinstance(value, PlainText)):
        value = PlainText(text.strip())
    return keys, value if text else ""


def _assigned(tree: Any, kind: inspect.Type | None, keys: Sequence[str], value: Any) -> Any:  # noqa: ANN401  # a tree
    """A copy of the tree with the value at the end of these keys; a section that is given keeps its other settings."""
    if not keys:
        if not (isinstance(tree, dict) and isinstance(value, dict) and kind and is_section(kind)):
            return value
        return tree | {key: _assigned(tree.get(key), field_of(kind, key), (), each) for key, each in value.items()}
    if tree is None or (isinstance(tree, PlainText) and tree.is_null):
        tree = {}
    if not isinstance(tree, dict):
        return tree  # which is wrong there, and is reported
    key, *rest = keys
    return tree | {key: _assigned(tree.get(key), field_of(kind, key), rest, value)}
