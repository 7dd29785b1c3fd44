"""Plans: the same number means the same plan, and every setting, mode, annotation and event occurs."""

import subprocess
import sys
from collections import Counter

import msgspec
import pytest

from extender.config.reading import load_config
from extender.config.tree import settings
from extender.placement.annotations import AUTHORS_KEYS
from tests.worlds.choices import BY_MODE, DRAWN, FIXED, POD_ANNOTATIONS
from tests.worlds.numbered import plan_of
from tests.worlds.plan import AnyEvent, Applied, Mode, NamespaceAnnotated, Plan
from tests.worlds.themes import THEMES

NUMBERS = range(600)


@pytest.fixture(scope="module")
def plans() -> list[Plan]:
    return [plan_of(number) for number in NUMBERS]


def test_every_setting_is_drawn_follows_from_the_mode_or_is_fixed_for_a_reason() -> None:
    """A mode that plans lack is one whose defects stay hidden: a new setting needs a line in choices.py."""
    assert sorted(each.path for each in settings()) == sorted([*DRAWN, *BY_MODE, *FIXED])


def test_every_value_of_a_setting_occurs(plans: list[Plan]) -> None:
    seen = {setting for plan in plans for setting in plan.settings}
    assert {f"{path}={value}" for path, values in DRAWN.items() for value in values} <= seen


def test_every_word_of_a_setting_is_drawn_or_its_default() -> None:
    """Of an enum or a yes and no, each value is played."""
    words = {
        "placement.mode": ["enforce", "observe"],
        "placement.preference_by": ["score", "filter"],
        "scheduler.pending": ["retry", "assume", "pass"],
        "scheduler.unknown": ["retry", "assume", "pass"],
        "admission.node_affinity": ["none", "required", "preferred", "both"],
        "admission.unknown": ["pass", "gate", "assume"],
        "admission.impossible": ["pend", "deny"],
    }
    schema = msgspec.json.schema(type(load_config(None, ("cluster=none", "admission.listen="))))
    defaults = {each.path: each.default for each in settings()}
    for path, expected in words.items():
        drawn = {defaults[path], *DRAWN[path]}
        assert drawn == {f'"{word}"' for word in expected}
        for word in expected:
            assert f'"{word}"' in msgspec.json.encode(schema).decode()


def test_every_annotation_of_authors_occurs(plans: list[Plan]) -> None:
    assert set(POD_ANNOTATIONS) == AUTHORS_KEYS
    of_pods = str([event.manifest for plan in plans for event in plan.events if isinstance(event, Applied)])
    first = [each for plan in plans for namespace in plan.namespaces for each in namespace.annotations.items()]
    events = [event for plan in plans for event in plan.events if isinstance(event, NamespaceAnnotated)]
    of_namespaces = {*first, *(each for event in events for each in event.annotations.items())}
    for key, values in POD_ANNOTATIONS.items():
        for value in values:
            assert f"'{key}': '{value}'" in of_pods
            assert (key, value) in of_namespaces


def test_every_theme_mode_and_event_occurs(plans: list[Plan]) -> None:
    assert {plan.theme for plan in plans} == set(THEMES)
    assert {plan.mode for plan in plans} == set(Mode)
    kinds = Counter(type(event) for plan in plans for event in plan.events)
    assert set(kinds) == set(AnyEvent.__args__)


def test_a_plan_can_be_written_and_read(plans: list[Plan]) -> None:
    for plan in plans[: len(THEMES)]:
        assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan


def test_a_number_means_one_plan_in_every_process(plans: list[Plan]) -> None:
    program = "from tests.worlds.numbered import plan_of; print([hash(str(plan_of(n))) for n in range(20)])"
    program = program.replace("hash(str(plan_of(n)))", "__import__('zlib').crc32(repr(plan_of(n)).encode())")
    runs = {
        subprocess.run([sys.executable, "-c", program], env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."}, check=True,
                       capture_output=True, text=True).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(runs) == 1
