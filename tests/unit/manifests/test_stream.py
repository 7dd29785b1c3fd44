"""A stream cut into documents."""

from hypothesis import given
from hypothesis import strategies as st

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
    """Others are not read at all; the kind may be quoted, and JSON's."""
    texts = ["kind: Deployment", 'kind: "CronJob"', '{"kind":"Pod"}', "  kind: PodList", "kind: Namespace"]
    others = ["kind: ConfigMap", "kind: CustomResourceDefinition", "mankind: Pod", "kind: Podium", ""]
    found = [document.may_have_templates for document in split_documents("\n---\n".join([*texts, *others]))]
    assert found == [True] * len(texts) + [False] * len(others)
