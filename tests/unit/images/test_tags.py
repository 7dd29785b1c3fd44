"""Tags are ordered by the version or date that they state."""

import pytest

from extender.images.tags import newer_tags, parse_tag

NGINX = ["1.25.3", "1.25.4", "1.25.10", "1.25", "1", "latest", "1.26.0", "1.25.4-alpine", "1.26.0-alpine3.19",
         "mainline", "stable-perl", "1.27.0-rc.1", "v1.27.0", "sha-3f2a1b", "2024-05-01"]  # fmt: skip


@pytest.mark.parametrize(
    ("tag", "others", "newer"),
    [
        ("1.25.3", NGINX, ["1.25.4", "1.25.10", "1.26.0", "v1.27.0"]),
        ("1.25.3-alpine3.18", NGINX, ["1.26.0-alpine3.19"]),
        ("1.25.3-alpine", NGINX, ["1.25.4-alpine"]),
        ("1.25", NGINX, ["1.26.0", "v1.27.0"]),
        ("latest", NGINX, []),
        ("v0.14.0", ["v0.14.0", "v0.14.1", "v0.15.0-rc.0", "v0.9.0", "0.15.0"], ["v0.14.1", "0.15.0"]),
        ("1.2.0-rc.1", ["1.2.0-rc.2", "1.2.0", "1.2.0-beta.3", "1.1.9"], ["1.2.0-rc.2", "1.2.0"]),
        ("1.2.0rc1", ["1.2.0rc2", "1.2.0"], ["1.2.0rc2", "1.2.0"]),
        ("2023-11-02", ["2023-11-02", "2023-12-01", "2024-01-15", "1.0.0", "9000"], ["2023-12-01", "2024-01-15"]),
        ("20231102", ["20231201", "1.0.0", "20220101", "99"], ["20231201"]),
        ("2023.11", ["2023.12", "2024.2", "1.30"], ["2023.12", "2024.2"]),
        ("12.1.0-debian-12-r3", ["12.1.0-debian-12-r4", "12.1.0-debian-11-r9", "12.2.0"], ["12.1.0-debian-12-r4"]),
        ("release-1.4", ["release-1.5", "1.6", "release-1.3"], ["release-1.5"]),
        ("3", ["3", "4", "10", "5.1"], ["4", "5.1", "10"]),
        ("1.9", ["1.10.0", "1.9.5", "1.10"], ["1.10", "1.10.0"]),
        ("1.0.0", ["1.0.0", "1.0.0+build.5"], []),
    ],
)
def test_newer_tags_are_found_and_ordered(tag: str, others: list[str], newer: list[str]) -> None:
    """Numbers count as numbers, flavours and dates are kept apart, moving tags and pre-releases are left out."""
    assert newer_tags(tag, others) == newer


def test_a_name_or_commit_is_no_version() -> None:
    for tag in ("latest", "main", "3f2a1b9", "sha-3f2a1b9", "edge-alpine", "9" * 40, "", "_", "١.٢"):
        assert parse_tag(tag) is None


def test_a_long_tag_takes_no_time() -> None:
    """The pattern does not backtrack over 128 characters for long."""
    assert parse_tag("a-" * 63 + "!") is None
    assert newer_tags("2.0", ["1." + "1." * 60 + "x", "-".join("1" * 60)]) == []
