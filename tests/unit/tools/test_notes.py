"""The note of a release."""

from tools.release.notes import note_of

CHANGELOG = """# Changelog

## Unreleased

Later.

## 0.2.0 (2026-12-01)

### Added

- One.

## 0.1.0

First.
"""


def test_a_note_is_of_its_version_alone() -> None:
    assert note_of("0.2.0", CHANGELOG) == "### Added\n\n- One.\n"
    assert note_of("0.1.0", CHANGELOG) == "First.\n"


def test_a_version_without_a_section_has_no_note() -> None:
    assert note_of("0.2", CHANGELOG) is None
    assert note_of("0.3.0", CHANGELOG) is None
