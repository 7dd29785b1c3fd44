"""Edits of a document's text: what is written, and what stays to the byte."""

import re
import textwrap

import pytest
import yaml

from extender.kubernetes.documents import Json
from extender.kubernetes.pod_templates import Path
from extender.manifests.editing import edit_document
from extender.manifests.stream import node_of
from extender.placement.patch import Operation, diff
from extender.yaml_values import value_of

TOLERATION = {"value": "true"}
ADD = Operation("add", "/spec/tolerations", [TOLERATION])
APPEND = Operation("add", "/spec/tolerations/0", TOLERATION)
TEMPLATE: Path = ("spec", "template")
BARE_WORDS = ["yes", "No", "ON", "off", "true", "null", "~", "", "12:30", "1_000", "0777", "0x1f", "1e3", "0o7", "0b1"]


def read_document(text: str, line: int = 1) -> Json:
    """What kubectl makes of the text."""
    return value_of(node_of(text, line), line)


def text(indented: str) -> str:
    return textwrap.dedent(indented).lstrip("\n")


def sides(marked: str) -> tuple[str, str]:
    """The text before and after: lines behind `<` are in the first alone, those behind `>` in the second."""
    lines = textwrap.dedent(marked).strip("\n").splitlines()
    both = ([re.sub(f"^( *){own} ", r"\1  ", line) for line in lines if not line.lstrip().startswith(f"{other} ")]
            for own, other in ("<>", "><"))  # fmt: skip
    before, after = (textwrap.dedent("\n".join(side)) + "\n" for side in both)
    return before, after


CASES = {
    "comments after the last line stay with what they are about": (
        ADD,
        """
        # of the file
        spec:
          template:
            spec:
              containers:
                - image: "app"   # the app
                  args: ['a', b]
                  # of the container
              # of the pod
            > tolerations:
              > - value: 'true'
            # of the template
        # of nothing
        """,
    ),
    "lists that are not indented stay so": (
        ADD,
        """
        spec:
          template:
            spec:
              containers:
              - image: app
            > tolerations:
            > - value: 'true'
        """,
    ),
    "an empty list on its line becomes a list below it": (
        APPEND,
        """
        spec:
          template:
            spec:
            < tolerations: []  # none yet
            > tolerations:  # none yet
            > - value: 'true'
              containers:
              - image: app
        """,
    ),
    "a key without a value gets one": (
        Operation("replace", "/spec/tolerations", [TOLERATION]),
        """
        spec:
          template:
            spec:
              tolerations:
            > - value: 'true'
              containers:
              - image: app
        """,
    ),
    "a block of text at the end is not touched": (
        ADD,
        """
        spec:
          template:
            spec:
              containers:
              - image: app
                command:
                - |
                  echo '# no comment'

                  # a comment of the script
            > tolerations:
            > - value: 'true'
        """,
    ),
    "an alias at the end is not taken for its anchor": (
        ADD,
        """
        metadata: {labels: &labels {app: web}}
        spec:
          template:
            spec:
              containers: [{image: app}]
              nodeSelector: *labels
            > tolerations:
            > - value: 'true'
        """,
    ),
    "flow style is edited within": (
        ADD,
        """
        < spec: {template: {spec: {containers: [{image: app}]}}}  # short
        > spec: {template: {spec: {containers: [{image: app}], tolerations: [{value: 'true'}]}}}  # short
        """,
    ),
    "JSON stays JSON": (
        ADD,
        """
        {
        < "spec": {"template": {"spec": {}}}
        > "spec": {"template": {"spec": {"tolerations": [{"value": "true"}]}}}
        }
        """,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_edit_adds_lines_and_keeps_the_others(case: str) -> None:
    operation, marked = CASES[case]
    before, after = sides(marked)
    assert edit_document(before, [(TEMPLATE, operation)]) == after


def test_a_template_behind_an_alias_gets_its_own_copy() -> None:
    """Both workloads share one template; a change of the first is none of the second, and the anchor moves to it."""
    before = text("""
        first:
          template: &shared
            spec:
              containers:
              - image: app  # shared
        second:
          template: *shared
        """)
    made = edit_document(before, [(("first", "template"), ADD)])
    value = read_document(made)
    assert isinstance(value, dict)
    assert value["first"] == {"template": {"spec": {"containers": [{"image": "app"}], "tolerations": [TOLERATION]}}}
    assert value["second"] == {"template": {"spec": {"containers": [{"image": "app"}]}}}
    assert "template: &shared" in made
    assert made.count("# shared") == 1


def test_a_merged_map_is_not_changed_for_others() -> None:
    """The pod's spec comes by a merge key; it is written out where it changes."""
    before = text("""
        base: &base
          spec:
            containers:
            - image: app  # of the base
        template:
          <<: *base
          kept: 1
        """)
    made = edit_document(before, [(("template",), ADD)])
    value = read_document(made)
    assert isinstance(value, dict)
    assert value["base"] == {"spec": {"containers": [{"image": "app"}]}}
    assert value["template"] == {"spec": {"containers": [{"image": "app"}], "tolerations": [TOLERATION]}, "kept": 1}
    assert "<<: *base" in made


BARE_WORDS += ["2026-01-01", ".inf", "=", "<<", "+1", "-1", "1.", "386", "y", "N"]


class KubectlLoader(yaml.SafeLoader):
    """YAML 1.1 and what kubectl's reader adds to it: `y` and `n` are booleans, `0o7` and `1e3` are numbers."""


def _fail(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> str:
    pytest.fail(f"{node.value} stands without quotes")


KubectlLoader.add_implicit_resolver("!bare", re.compile(r"(?:[yYnN]|0o[0-7]+|\d+e\d+)\Z"), list("yYnN0123456789"))
KubectlLoader.add_constructor("!bare", _fail)


@pytest.mark.parametrize(
    "before",
    ["spec:\n  hostNetwork: true\n", "spec: {hostNetwork: true}\n", '{"spec": {"hostNetwork": true}}\n'],
    ids=["in lines", "in flow style", "in JSON"],
)
def test_a_text_that_yaml_1_1_reads_as_no_text_is_quoted(before: str) -> None:
    """Values and keys: kubectl refuses a toleration whose value is a boolean."""
    for word in BARE_WORDS:
        toleration = {"key": "arch", "operator": "Equal", "value": word}
        selector = Operation("add", "/spec/nodeSelector", {"zone": word})
        key = Operation("add", f"/spec/nodeSelector/{(word or 'on').replace('~', '~0')}", word)
        tolerations = Operation("add", "/spec/tolerations", [toleration])
        made = edit_document(before, [((), tolerations), ((), selector), ((), key)])
        written = {"tolerations": [toleration], "nodeSelector": {"zone": word, word or "on": word}}
        assert yaml.load(made, KubectlLoader) == {"spec": {"hostNetwork": True, **written}}  # a SafeLoader


def test_windows_line_ends_stay() -> None:
    before = "spec:\r\n  template:\r\n    spec:\r\n      hostNetwork: true\r\n"
    made = edit_document(before, [(TEMPLATE, ADD)])
    assert made.startswith(before)
    assert made.count("\n") == made.count("\r\n") == 6


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "# one\r\nspec:\n  hostNetwork: true\n# two\r\n---x: 1\n",
            ("# one\r\nspec:\n  hostNetwork: true\n  tolerations:\n  - value: 'true'\n# two\r\n---x: 1\n"),
        ),
        (
            "# one\nspec:\r\n  hostNetwork: true\r\n# two\n",
            ("# one\nspec:\r\n  hostNetwork: true\r\n  tolerations:\r\n  - value: 'true'\r\n# two\n"),
        ),
        (
            "# one\r\nspec: {hostNetwork: true}\nother: |\r\n  a\n  b\r\n",
            ("# one\r\nspec: {hostNetwork: true, tolerations: [{value: 'true'}]}\nother: |\r\n  a\n  b\r\n"),
        ),
    ],
    ids=["after a newline alone", "after both characters", "in flow style"],
)
def test_in_a_text_with_both_line_ends_new_lines_end_as_those_before_them(before: str, after: str) -> None:
    assert edit_document(before, [((), ADD)]) == after


def test_a_text_without_a_last_newline_is_edited() -> None:
    assert edit_document("spec:\n  hostNetwork: true", [((), ADD)]).startswith("spec:\n  hostNetwork: true\n  toler")


def test_several_operations_follow_each_other() -> None:
    """The second appends to the list that the first has made."""
    second = Operation("add", "/spec/tolerations/1", {"key": "other"})
    made = edit_document("spec:\n  hostNetwork: true\n", [((), ADD), ((), second)])
    assert read_document(made) == {"spec": {"hostNetwork": True, "tolerations": [TOLERATION, {"key": "other"}]}}


REMOVALS = {
    "items that are no neighbours": """
    tolerations:  # of the pods
      # for arm64
    < - key: arch  # by hand
      < value: arm64
      # our own
      - key: own  # stays
    < - {key: arch, value: arm}
      - key: last  # stays too
    """,
    "the last two of a list on one line": """
    < a: [{b: 1}, {c: 2}, {d: 3}]  # three
    > a: [{b: 1}]  # three
    """,
    "the first and the third of JSON": """
    < {"a": [{"b": 1}, {"c": 2}, {"d": 3}, {"e": 4}]}
    > {"a": [{"c": 2}, {"e": 4}]}
    """,
    "a key in lines, and one on a line": """
    spec:
    < affinity:
      < nodeAffinity: {a: b}

      # where the disks are
    < nodeSelector: {kubernetes.io/arch: amd64, disk: ssd}
    > nodeSelector: {disk: ssd}
    """,
}


@pytest.mark.parametrize("case", REMOVALS)
def test_what_is_removed_takes_its_own_lines_alone(case: str) -> None:
    before, after = sides(REMOVALS[case])
    operations = [((), operation) for operation in diff(read_document(before), read_document(after))]
    assert edit_document(before, operations) == after
