"""Reads the settings from a YAML file and `--set`, and words the message of each refusal."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from extender.config.checks import problems_of
from extender.config.tree import Config, settings
from extender.errors import ConfigError


def load_config(file: str | None, assignments: Sequence[str] = ()) -> Config:
    """The settings, checked as a whole: `--set path=value` overrides the YAML file, which overrides the defaults.

    Raises:
        ConfigError: the file cannot be read, a key is unknown, a value is wrong, or values contradict each other. The
            message names the key's path, the value and what would be right.
    """
    config = read_config(file, assignments)
    if problems := list(problems_of(config)):
        raise ConfigError("\n".join(problems))
    return config


def read_config(file: str | None, assignments: Sequence[str] = ()) -> Config:
    """As `load_config`, without the check whether values contradict each other; the command `config` prints these."""
    return _convert(_read_file(file) if file else {}, assignments)


def parse_config(text: str | bytes, file: str, assignments: Sequence[str] = ()) -> Config:
    """As `read_config`, of the text of the file."""
    return _convert(_parse(text, file), assignments)


def _convert(tree: dict[str, Any], assignments: Sequence[str]) -> Config:
    for assignment in assignments:
        _assign(tree, assignment)
    try:
        return msgspec.convert(tree, Config, strict=False)
    except msgspec.ValidationError as exc:
        raise ConfigError(_explain(str(exc), tree)) from exc


def _read_file(file: str) -> dict[str, Any]:
    try:
        return _parse(Path(file).read_bytes(), file)
    except OSError as exc:
        raise ConfigError(f"{file}: {exc.strerror}; --config takes a readable YAML file") from exc


def _parse(text: str | bytes, file: str) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as exc:  # ValueError is PyYAML's for the date 2001-13-45
        raise ConfigError(f"{file} is no YAML: {exc}") from exc
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{file} holds {type(tree).__name__} {tree!r:.80}; it must be a map such as `scheduler: {{…}}`"
        )
    return tree


def _assign(tree: dict[str, Any], assignment: str) -> None:
    path, equals, text = assignment.partition("=")
    keys = path.split(".")
    if not equals or not all(keys):
        raise ConfigError(f"--set {assignment}: write path=value, for example --set scheduler.wait_seconds=0.2")
    try:
        value = yaml.safe_load(text) if text else ""
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise ConfigError(f"--set {path}: {text!r} is no YAML value: {exc}") from exc
    for key in keys[:-1]:
        inner = tree.get(key)
        tree[key] = inner if isinstance(inner, dict) else {}
        tree = tree[key]
    tree[keys[-1]] = value


REMOVED = {
    "admission.network_policy": "Reviews are taken for the API server's; a network policy says who reaches the port.",
    "admission.path_token_file": "Reviews need no token; admission.tls.client_ca asks callers for a certificate.",
    "admission.self_managed.job_configurations": "Name all in admission.self_managed.configurations.",
    "admission.self_managed.scheduler_name_configurations": "Name all in admission.self_managed.configurations.",
    "admission.self_managed.token_days": "Reviews need no token.",
    "facts": "Policies read the annotation that admission.platforms_annotation writes; explain looks for itself.",
    "placement.count_starts": "kube-state-metrics counts starts of containers.",
    "admission.self_managed.authority_days": "A certificate is its own authority.",
    "admission.self_managed.lease": "No replica leads: the Secret is written with the version that was read.",
    "admission.self_managed.service": "Name the Service first in admission.self_managed.names.",
    "cluster.stale_seconds": "Readiness fails once a view is 300 s old.",
    "log.format": "Events are JSON, and written for a person where standard error is a terminal.",
    "operations.metrics_listen": "Metrics are at operations.listen; a network policy says who reaches it.",
    "placement.ignore_runtime_classes": "Write placement.runtime_classes: {NAME: []} for each class.",
    "registry.always_seconds": "Tags that pods pull at each start are fresh for 60 s.",
    "registry.concurrency_per_host": "Sixteen lookups are at one registry host at a time.",
    "scheduler.insecure": "Give scheduler.tls, or listen on a loopback address behind a proxy of the pod.",
    "shutdown.linger_seconds": "It is a quarter of shutdown.grace_seconds.",
}
"""Settings that were removed, and what is instead of each."""

_AT = re.compile(r"(?P<what>.*?)(?: - at `(?:key in )?\$(?P<path>[^`]*)`)?", re.DOTALL)
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]|\[\.\.\.\]")
_INDEX = re.compile(r"\[\d*\]\Z")  # the index of a list's item, since the setting is the list
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)


def _explain(message: str, tree: object) -> str:
    """The refusal for a validation message: path, value, what is wrong, what would be right."""
    found = _AT.fullmatch(message)
    what, path = (found["what"], found["path"] or "") if found else (message, "")
    path = path.removeprefix(".")
    if unknown := _UNKNOWN_FIELD.fullmatch(what):
        section = f"{path}." if path else ""
        if instead := REMOVED.get(f"{section}{unknown[1]}"):
            return f"{section}{unknown[1]}: there is no such setting any more; take it out. {instead}"
        known = sorted(
            {
                setting.path.removeprefix(section).split(".")[0]
                for setting in settings()
                if setting.path.startswith(section)
            }
        )
        hint = f"; known there: {', '.join(known)}" if known else ""
        return f"{section}{unknown[1]}: there is no such setting{hint}"
    value = tree
    for name, index in _STEP.findall(path):
        try:
            value = value[int(index)] if index else value[name] if name else value  # type: ignore[index]  # a miss is caught
        except (KeyError, IndexError, TypeError):
            break
    setting_path = _INDEX.sub("", path)
    documentation = next((f". {setting.documentation}" for setting in settings() if setting.path == setting_path), "")
    return f"{path or 'the configuration'}: {value!r:.200} is wrong: {what[:1].lower()}{what[1:]}{documentation}"


def to_yaml(config: Config) -> str:
    """The whole Config as YAML, defaults included; reading it back gives an equal Config."""
    return yaml.safe_dump(msgspec.to_builtins(config), sort_keys=False, allow_unicode=True, width=120)
