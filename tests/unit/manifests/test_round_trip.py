"""Properties of edits over many shapes of manifests: only lines are added, and the value is what the patch gives."""

import copy
import difflib
import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from extender.manifests.fixing import ManifestStream
from extender.manifests.stream import read_stream
from extender.placement.affinity import AffinityMode
from extender.placement.facts import ImageFact
from extender.placement.nodes import USUAL
from extender.placement.planning import AdmissionSettings
from extender.placement.policy import Policy
from extender.placement.relaxing import Relaxer
from extender.placement.templates import Templates
from extender.placement.tolerations import TolerationRule
from tests.builders import AMD64, ARCH, MULTI, PREFERRED, expression, with_terms
from tools.docs.pages import PROJECT

RULE = TolerationRule(
    key="arch", operator="Equal", value="arm64", effect="NoSchedule", platforms=("linux/amd64", "linux/arm64")
)
ADMISSION = AdmissionSettings(tolerations=(RULE,), node_affinity=AffinityMode.BOTH)
MUTATOR = Templates(Policy(preference={"arm64": 10}), ADMISSION)
RELAXER = Relaxer(Policy(), AdmissionSettings(tolerations=(RULE,)), USUAL)
FACTS = {"multi": MULTI, "amd": AMD64}

COMMENTS = st.lists(st.sampled_from(["# note", "#", "    # deep", "", "# key: value", "# - item"]), max_size=1)
ZONE, ON_AMD64 = expression("zone", "a"), expression(ARCH, "amd64")
AFFINITIES: st.SearchStrategy[Any] = st.sampled_from(
    [
        None,
        {"podAntiAffinity": {}},
        with_terms({"matchExpressions": [ZONE]}, {"matchFields": [{**ZONE, "key": "metadata.name"}]}),
        {"nodeAffinity": {PREFERRED: [{"weight": 1, "preference": {"matchExpressions": [ZONE]}}]}},
    ]
)
ARCHITECTURE_TAINT = {"key": "arch", "value": "arm64", "effect": "NoSchedule"}
TERMS = st.permutations([ON_AMD64, ZONE]).map(lambda both: {"matchExpressions": list(both)})


def fixed(text: str, fact: ImageFact | None = None) -> str:
    """The text after `fix`; all images are of this fact, or of that of their name."""
    return ManifestStream(text, MUTATOR).fix(lambda images: [fact or FACTS[each.reference] for each in images])[0]


def relaxed(text: str) -> str:
    return ManifestStream(text, RELAXER).fix(lambda images: [FACTS[each.reference] for each in images])[0]


class Written:
    """A value as text in one of many styles: lines of several indents, flow style on one line or on several, JSON."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.lines = 0

    def one(self, choices: list[Any]) -> Any:  # as the choices are
        return self.draw(st.sampled_from(choices))

    def block(self, value: Any, column: int) -> str:  # plain values
        made = []
        for key, item in value.items() if isinstance(value, dict) else ((None, each) for each in value):
            lead = " " * column + ("- " if key is None else f"{key}:")
            beside = self.one(["", "", "  # beside"])
            if not isinstance(item, dict | list) or not item or self.one([True, False, False]):
                made.append(f"{lead}{'' if key is None else ' '}{self.flow(item)}{beside}\n")
            elif key is None:
                made.append(lead + self.block(item, column + 2)[column + 2 :])
            else:
                inner = column + self.one([2, 4] if isinstance(item, dict) else [0, 2, 4])
                made.append(f"{lead}{beside}\n{self.block(item, inner)}")
        return "".join(made)

    def flow(self, value: Any) -> str:  # as above
        if isinstance(value, dict):
            return "{" + ", ".join(f"{key}: {self.flow(item)}" for key, item in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(map(self.flow, value)) + "]"
        return "" if value is None else str(value)

    def json(self, value: Any) -> str:  # as above
        indent = self.one([None, 2, 4, "\t"])
        return json.dumps(value, indent=indent, separators=(",", ":") if self.one([True, False]) else None)


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": [{"name": "one", "image": "amd"}, {"name": "two", "image": "multi"}]}
    if affinity := draw(AFFINITIES):
        spec["affinity"] = copy.deepcopy(affinity)
    if draw(st.booleans()):
        spec["tolerations"] = draw(st.sampled_from([[{"key": "own"}], [], None]))
    if draw(st.booleans()):
        spec["nodeSelector"] = draw(st.sampled_from([{"zone": "a"}, {}]))
    return {key: spec[key] for key in draw(st.permutations(list(spec)))}


CONSTRAINTS = st.fixed_dictionaries(
    {
        "nodeSelector": st.sampled_from([{}, {"zone": "a"}]).map(lambda own: {**own, "kubernetes.io/arch": "amd64"}),
        "tolerations": st.lists(st.sampled_from([ARCHITECTURE_TAINT, {"key": "own"}])),
        "affinity": st.lists(TERMS, min_size=1, max_size=2).map(
            lambda terms: {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
            }
        ),
        "containers": st.just([{"name": "one", "image": "multi"}]),
    }
)


@st.composite
def streams(draw: st.DrawFn, of: st.SearchStrategy[dict[str, Any]]) -> str:
    """A few Deployments or DaemonSets of such a spec in all styles, with comments between lines of YAML."""
    one = {
        "apiVersion": "apps/v1",
        "kind": draw(st.sampled_from(["Deployment", "DaemonSet"])),
        "metadata": {"name": "web"},
        "spec": {"template": {"spec": copy.deepcopy(draw(of))}},
    }
    written = Written(draw)
    mark, end = draw(st.sampled_from(["", "", "\ufeff"])), draw(st.sampled_from(["\n", "\n", "\r\n"]))
    if draw(st.booleans()):
        text = written.json({"apiVersion": "v1", "kind": "List", "items": [one, one]})
    else:
        text = "---\n".join(written.block(one, 0) for _ in range(draw(st.integers(1, 2))))
        text = "".join(comments_before(draw, line) + line for line in text.splitlines(keepends=True))
        text = text if draw(st.booleans()) else text.removesuffix("\n")
    return mark + text.replace("\n", end)


def comments_before(draw: st.DrawFn, line: str) -> str:
    indent = " " * (len(line) - len(line.lstrip()))
    return "".join(f"{indent}{comment}\n" if comment else "\n" for comment in draw(COMMENTS))


def without_ours(value: Any) -> Any:
    if isinstance(value, dict):
        ours = ("affinity", "nodeSelector", "tolerations")
        return {key: without_ours(item) for key, item in value.items() if key not in ours}
    return [without_ours(item) for item in value] if isinstance(value, list) else value


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(streams(specs()))
def test_in_every_style_only_what_must_change_does(text: str) -> None:
    """A line that is not kept has got text within, or lost an empty list or map; a second pass changes nothing."""
    after = fixed(text)
    assert after != text
    assert fixed(after) == after
    assert_only_what_must_change_does(text, after)
    before_values, after_values = ([without_ours(each.value) for each in read_stream(it)] for it in (text, after))
    assert before_values == after_values


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(streams(CONSTRAINTS))
def test_in_every_style_only_what_must_go_goes(text: str) -> None:
    """Each line that is left was there, or is a part of one; a second pass changes nothing."""
    after = relaxed(text)
    assert "amd64" not in after
    assert after.count("zone") == text.count("zone")
    assert relaxed(after) == after
    assert all(any(_is_within(line.strip(), other) for other in text.split("\n")) for line in after.split("\n"))


FILES = [
    path
    for folder in ("deploy", "docs", "tests", "testbed", ".github")
    for path in sorted((PROJECT / folder).rglob("*"))
    if path.suffix in (".yaml", ".yml", ".json") and "templates" not in path.parts
]


@pytest.mark.parametrize("fact", FACTS.values(), ids=FACTS)
def test_every_file_of_the_repository_keeps_its_lines(fact: ImageFact) -> None:
    """Manifests, renderings of the chart, workflows, data of tests: those with pods are changed, others are not."""
    changed = set[str]()
    for path in FILES:
        text = path.read_text()
        after = fixed(text, fact)
        assert fixed(after, fact) == after, path
        assert_only_what_must_change_does(text, after)
        changed |= {path.stem} if after != text else set()
    assert {"webhook", "second-scheduler", "policy"} <= changed


def assert_only_what_must_change_does(text: str, after: str) -> None:
    """A line that is not kept has got text within, or lost an empty list or map."""
    assert after.startswith("\ufeff") == text.startswith("\ufeff")
    assert after.endswith("\n") == text.endswith("\n")
    old, new = text.split("\n"), after.split("\n")
    for tag, start, end, at, at_end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        assert tag != "delete"
        for line in old[start:end] if tag == "replace" else ():
            code = re.sub(r"(\[\]|\{\})?\s*(#.*)?$", "", line).rstrip()
            assert any(_is_within(code, other) for other in new[at:at_end]), (line, new[at:at_end])


def _is_within(line: str, other: str) -> bool:
    characters = iter(other)
    return all(each in characters for each in line)
