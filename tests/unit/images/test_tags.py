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
        (
            "RELEASE.2024-01-01T00-00-00Z",
            [
                "RELEASE.2024-02-01T10-00-00Z",
                "RELEASE.2023-12-01T00-00-00Z",
                "RELEASE.2024-01-01T00-00-01Z",
                "RELEASE.2024-03-01T00-00-00Z-cpuv1",
                "latest",
            ],
            ["RELEASE.2024-01-01T00-00-01Z", "RELEASE.2024-02-01T10-00-00Z"],
        ),
        ("20240101T000000Z", ["20240101T000001Z", "20231231T235959Z"], ["20240101T000001Z"]),
        ("build.2024.01.31", ["build.2024.02.01", "2024.03.01"], ["build.2024.02.01"]),
        ("1.2.3-3f2a1b9", ["1.2.3-9e8d7c6", "1.2.4-0a1b2c3", "1.2.3-7654321", "1.3.0"], ["1.2.4-0a1b2c3"]),
        ("v1.2.3-5-g1234567", ["v1.2.3-5-g7654321", "v1.2.3-6-g0000001"], ["v1.2.3-6-g0000001"]),
        ("20240101-3f2a1b9", ["20240102-0a1b2c3", "20240102"], ["20240102-0a1b2c3"]),
        ("1.2.3-20240101", ["1.2.3-20240102"], ["1.2.3-20240102"]),
    ],
)
def test_newer_tags_are_found_and_ordered(tag: str, others: list[str], newer: list[str]) -> None:
    """Numbers count as numbers, flavours and dates are kept apart, moving tags and pre-releases are left out."""
    assert newer_tags(tag, others) == newer


def test_a_name_or_commit_is_no_version() -> None:
    for tag in ("latest", "main", "3f2a1b9", "sha-3f2a1b9", "edge-alpine", "9" * 40, "", "_", "١.٢", "sha-1234567",
                "sha-123456a", "1234567", "1234567b", "git-12345", "main-1234567", "commit_12345678", "latest-amd64",
                "sha256-" + "1" * 64 + ".sig", "g1234567", "linux-amd64"):  # fmt: skip
        assert parse_tag(tag) is None, tag


@pytest.mark.parametrize(
    "tag",
    ["v1.2.3-amd64", "amd64-1.2.3", "1.2.3_linux_amd64", "1.2.3-x86_64", "linux-x86-64-v1.2.3", "1.2.3.amd64",
     "1.2.3-linux-x64", "1.2.3-AMD64"],
)  # fmt: skip
def test_an_architecture_is_no_flavour(tag: str) -> None:
    """The same version without it counts, and so does, for the architecture that is asked for, the one beside it."""
    others = [tag, "1.2.2", "1.2.3", "1.2.4", "1.2.3-alpine", "1.2.3-arm64", "1.2.4_linux_aarch64", "arm64v8-1.2.2",
              "1.2.5-s390x", "1.2.5-amd64"]  # fmt: skip
    assert newer_tags(tag, others) == ["1.2.3", "1.2.4"]
    assert newer_tags(tag, others, "arm64") == ["1.2.3-arm64", "1.2.4_linux_aarch64"]
    assert newer_tags("1.2.3", others) == ["1.2.4"]
    assert newer_tags(f"{tag}-alpine", ["1.2.3", "1.2.3-alpine"]) == ["1.2.3-alpine"]


def test_a_long_tag_takes_no_time() -> None:
    """The pattern does not backtrack over 128 characters for long."""
    assert parse_tag("a-" * 63 + "!") is None
    assert newer_tags("2.0", ["1." + "1." * 60 + "x", "-".join("1" * 60)]) == []
