"""Which texts are written with quotes, so that kubectl reads a text."""

import pytest

from extender.manifests.yaml_scalars import needs_quotes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((word, True) for word in ("y", "N", "1e3", "0o7", "on", "2026-01-01", "")),
        ("arm64", False),
        ("yes-man", False),
    ],
)
def test_what_kubectl_would_read_as_no_text_is_quoted(text: str, expected: bool) -> None:
    """A label's value that is a number or a boolean without its quotes ends `kubectl apply`."""
    assert needs_quotes(text) is expected
