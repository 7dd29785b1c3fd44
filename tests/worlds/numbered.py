"""The plan of a number: a cluster, one theme, and one or two faults that overlap it."""

import json

from tests.worlds.choices import draw_settings
from tests.worlds.drawing import Draw, draw_bystanders, draw_cluster, draw_kubernetes, in_order, operator_files
from tests.worlds.faults import draw_faults
from tests.worlds.plan import Plan
from tests.worlds.themes import THEMES

DEFAULT_LIMIT_SECONDS = 300.0
_GOLDEN = 0.618034  # its multiples are spread evenly, so that every few worlds have their share


def plan_of(number: int) -> Plan:
    """The plan of the number, the same in every process. Themes take turns, and in each its modes."""
    turn, place = divmod(number, len(THEMES))
    name = list(THEMES)[place]
    theme = THEMES[name]
    mode = theme.modes[turn % len(theme.modes)]
    variant = theme.variants[(turn + turn // len(theme.modes)) % len(theme.variants)]
    is_calm = turn * _GOLDEN % 1.0 < theme.calm
    draw = Draw(number, name, mode)
    draw.seconds = min(theme.seconds, 120.0)
    draw_cluster(draw, odd=theme.odd, tainted=theme.tainted, slots=theme.slots)
    chance = draw.part("settings")
    settings = draw_settings(chance, mode, theme.favourites, {**theme.forced, **variant})
    replicas = max(theme.least_replicas, chance.choice((1, *range(1, theme.most_replicas + 1))))
    events = [*theme.events(draw), *draw_bystanders(draw)]
    guards = "admission.guard_daemon_sets=true" in settings
    kubernetes = draw_kubernetes(draw, guards=guards, injects=draw.known() if name == "injected" else "")
    events += draw_faults(draw, () if is_calm else theme.faults, replicas, limit_of(settings))
    return Plan(
        number=number,
        theme=name,
        mode=mode,
        seconds=theme.seconds,
        chance=number,
        settings=settings,
        replicas=replicas,
        kubernetes=kubernetes,
        nodes=tuple(draw.nodes),
        namespaces=tuple(draw.namespaces),
        images=tuple(draw.images),
        secrets=tuple(draw.secrets),
        files=operator_files(),
        events=in_order(events),
    )


def limit_of(settings: tuple[str, ...]) -> float:
    """How long pods are held at most."""
    found = [each.partition("=")[2] for each in settings if each.startswith("admission.gate.limit_seconds=")]
    return float(json.loads(found[-1])) if found else DEFAULT_LIMIT_SECONDS
