"""The values that a plan draws for each setting and annotation, beside the default. A test compares them with the code.

A value here is JSON, as `--set` takes it. What a mode needs or a theme is about comes last and wins.
"""

import random
from collections.abc import Iterable, Mapping

from extender.config.reading import load_config
from extender.errors import ConfigError
from tests.worlds.plan import Mode

PRIVATE_HOST, PUBLIC_HOST = "private.example.com", "registry.example.com"
OPERATOR_LOGIN = "operator:secret"
LEASE = "multiarch-held-pods"
POLICY_NAME = "multiarch-gate"
SECOND_SCHEDULER = "multiarch-scheduler"
EXEMPT_CLASS, HIGH_CLASS = "platform-critical", "high"
RUNTIME_CLASSES = ("rosetta", "wasm", "other")
FOLDER = "FOLDER"
"""Stands in a setting for the folder in which the world writes the plan's files."""

_RULES = (
    '[{"key":"arch","operator":"Exists","effect":"NoSchedule","platforms":["linux/arm64"]},'
    '{"key":"kubernetes.io/arch","operator":"Equal","value":"arm64","effect":"NoExecute","platforms":["linux/arm64"]}]'
)
DRAWN: Mapping[str, tuple[str, ...]] = {
    "placement.mode": ('"observe"',),
    "placement.preference": ('{"arm64":5,"amd64":2}', "{}", '{"amd64":7}'),
    "placement.preference_by": ('"filter"',),
    "placement.runtime_classes": ('{"rosetta":["linux/amd64"],"wasm":[]}',),
    "placement.images": ('[{"match":"registry.example.com/app/image-1:*","platforms":["linux/arm64"]}]',),
    "placement.compatibility": ('["386-on-amd64"]', '["arm-on-arm64"]', '["386-on-amd64","arm-on-arm64"]'),
    "registry.timeout_seconds": ("2", "5"),
    "registry.allow": (f'["{PUBLIC_HOST}"]', f'["*","{PUBLIC_HOST}"]'),
    "registry.deny": (f'["{PRIVATE_HOST}"]',),
    "registry.private_addresses": ("false",),
    "registry.docker_config": (f'"{FOLDER}/config.json"',),
    "registry.pull_secrets": ("false", '["team-a"]'),
    "cache.size": ("3",),
    "scheduler.wait_seconds": ("0", "1.5"),
    "scheduler.pending": ('"pass"', '"assume"', '"retry"'),
    "scheduler.unknown": ('"retry"', '"assume"', '"pass"'),
    "scheduler.assume": ('["linux/arm64"]', '["linux/amd64","linux/arm64"]'),
    "admission.wait_seconds": ("0", "0.5"),
    "admission.tolerations": ("[]", _RULES),
    "admission.node_affinity": ('"preferred"', '"both"', '"none"', '"required"'),
    "admission.unknown": ('"gate"', '"assume"', '"pass"'),
    "admission.impossible": ('"deny"',),
    "admission.gate.limit_seconds": ("20", "60", "8"),
    "admission.gate.exempt_priority_classes": (f'["{EXEMPT_CLASS}"]',),
    "admission.platforms_annotation": ("true",),
    "admission.guard_daemon_sets": ("true",),
    "shutdown.grace_seconds": ("5",),
}
"""What a plan gives a setting in place of its default, in some worlds."""

BY_MODE: Mapping[str, str] = {
    "admission.gate.policy": "the policy's name, where there is one",
    "admission.gate.lease": "the chart's name of it, as the API server has that Lease",
    "admission.gate.probe_namespace": "the namespace for dry runs that each world has",
    "admission.scheduler_name": "the second scheduler's name, where there is one",
    "scheduler.listen": "on where a scheduler asks",
    "admission.listen": "on where the API server asks",
}
"""Settings that follow from the mode."""

FIXED: Mapping[str, str] = {
    "log.level": "all events are read",
    "cluster": "every world has one; `none` changes what a request must have, which unit tests cover",
    "admission.tls.certificate": "connections are in memory, without TLS",
    "admission.tls.key": "as its certificate",
    "admission.tls.client_ca": "as its certificate",
    "admission.tls.self_managed": "as its certificate",
    "operations.listen": "the kubelet's probes need it",
    "registry.plain_http": "connections are in memory, without TLS",
    "registry.ca_files": "as registry.plain_http",
    "registry.credential_providers.config": "programs are other processes",
    "registry.credential_providers.bin_dir": "programs are other processes",
    "registry.clouds": "their token servers are not played",
    "registry.mirrors": "no mirror is played; nodes and service have the same registries",
    "cache.url": "always memory: what a store brings back is tested with real stores",
    "cache.key_file": "as cache.url",
}
"""Settings that are the same in every world, each with the reason."""

POD_ANNOTATIONS: Mapping[str, tuple[str, ...]] = {
    "multiarch-extender.io/mode": ("observe", "ignore", "enforce"),
    "multiarch-extender.io/prefer": ("amd64", "none", "arm64"),
    "multiarch-extender.io/prefer-share": ("40%", "100%", "nonsense"),
    "multiarch-extender.io/unknown": ("pass", "assume", "retry"),
}
"""The values that annotations of pods and namespaces take."""


def draw_settings(
    chance: random.Random, mode: Mode, favourites: Iterable[str], forced: Mapping[str, str]
) -> tuple[str, ...]:
    """The settings of a world: `favourites` of its theme mostly differ from their defaults, others seldom.

    What cannot stand beside the rest is left out.
    """
    favourites = frozenset(favourites)
    drawn = {}
    for path, values in DRAWN.items():
        is_drawn = chance.random() < (0.6 if path in favourites else 0.1)
        value = chance.choice(values)
        if is_drawn:
            drawn[path] = value
    drawn.update(forced)
    drawn.update(_of_mode(mode, drawn))
    settings = dict(drawn)
    for path in (*reversed(drawn), ""):
        if not path or _is_valid(settings):
            break
        if path not in forced and path in DRAWN:
            del settings[path]
    return tuple(f"{path}={value}" for path, value in settings.items())


def _of_mode(mode: Mode, drawn: Mapping[str, str]) -> dict[str, str]:
    """What the mode's files set (deploy/manifests, and the chart for both the webhook and the policy)."""
    found = {"admission.gate.lease": f'"{LEASE}"'}
    if mode.has_policy:
        found |= {"admission.unknown": '"gate"', "admission.gate.policy": f'"{POLICY_NAME}"'}
    if mode is Mode.SECOND:
        found["admission.scheduler_name"] = f'"{SECOND_SCHEDULER}"'
    # An Error passes every node where the extender is ignorable.
    if mode in (Mode.DEFAULT, Mode.DEFAULT_AND_WEBHOOK) and drawn.get("scheduler.pending") != '"pass"':
        found["scheduler.pending"] = '"assume"'
    if mode is Mode.DEFAULT:
        found["admission.unknown"] = '"pass"'
    return found


def listens(mode: Mode) -> tuple[str, ...]:
    """The listeners of the mode that are off."""
    off = [] if mode.has_verbs else ["scheduler.listen=''"]
    return (*off, *([] if mode.has_webhook else ["admission.listen=''"]))


def _is_valid(settings: Mapping[str, str]) -> bool:
    try:
        load_config(
            None, ("admission.listen=127.0.0.1:8443", "admission.tls=null", *(f"{k}={v}" for k, v in settings.items()))
        )
    except ConfigError:
        return False
    return True
