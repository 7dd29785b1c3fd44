"""A stream cut into documents."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.bounded_yaml import InvalidYaml, check_yaml
from extender.manifests.stream import split_documents

LINES = st.sampled_from(["---", "--- # Source: a.yaml", "...", "a: 1", "kind: Deployment", "  ---", "", "# c", "---x"])


@given(st.lists(LINES), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_the_documents_together_are_the_stream(lines: list[str], end: str, ended: bool) -> None:
    """Nothing is lost at markers, and each document's line is where it begins."""
    text = end.join(lines) + (end if ended else "")
    documents = list(split_documents(text))
    assert "".join(document.marker + document.body for document in documents) == text
    numbered = text.splitlines()
    assert all(
        numbered[document.line - 1] == document.body.splitlines()[0] for document in documents if document.body.strip()
    )


def test_only_documents_that_may_have_templates_are_named() -> None:
    """Others are not read at all: those with a list of containers, and Namespaces; keys may be quoted, and JSON's."""
    texts = [
        "containers:\n- image: app",
        "containers: &all\n  - image: app",
        "containers: # ours\n  # first\n  - image: app",
        "containers: *all",
        "containers: !!seq [{image: app}]",
        '{"containers":[{"image":"app"}]}',
        "kind: &kind Namespace",
        'kind: !!str "Namespace"',
    ]
    others = ["kind: Deployment", "containers:\n  type: array", "mankind: Namespace", "kind: Namespaced", ""]
    found = [document.may_have_templates for document in split_documents("\n---\n".join([*texts, *others]))]
    assert found == [True] * len(texts) + [False] * len(others)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\n---\nb: [1", "line 3: "),
        ("kind: ConfigMap\ndata: {a: 1\n\n", "line 2: "),
        ("a: 1\nb: 'x\n", "line 2: "),
        ("a: 1\n---\nb: &b 1\n---\nc: *b\n", "line 5: found undefined alias"),
        ("{{- if .Values.x }}\na: 1\n{{- end }}\n", "line 1: "),
        ("a: 1\nb: \x07\n", "line 2: "),
        ("[{" * 100_000, "line 1: it is nested too deep"),
    ],
    ids=["a list", "a map", "a text", "an alias of another document", "a chart's template", "a bell", "deep"],
)
def test_what_is_not_yaml_is_refused_with_its_line(text: str, says: str) -> None:
    """Whatever its kind, if it has one: nobody knows what the rest of a file would be that is cut off."""
    with pytest.raises(InvalidYaml, match=says):
        check_yaml(text)


@pytest.mark.parametrize("text", ["", "%YAML 1.1\n---\na: 1\n...\n---\nb: !x &b [c]\n", "\ufeffa: 1\n", "---\n---\n"])
def test_what_is_yaml_is_no_error(text: str) -> None:
    """Directives, tags, several documents, and none."""
    check_yaml(text)
