"""Which texts are written with quotes, so that kubectl reads a text."""

from extender.manifests.yaml_scalars import needs_quotes


def test_what_kubectl_would_read_as_no_text_is_quoted() -> None:
    """A label's value that is a number or a boolean without its quotes ends `kubectl apply`."""
    assert all(map(needs_quotes, ("y", "N", "1e3", "0o7", "on", "2026-01-01", "")))
    assert not any(map(needs_quotes, ("arm64", "yes-man")))
