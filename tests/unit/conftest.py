"""What holds for every unit test."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def _of_loopback_alone(no_system_authorities: None) -> None:
    """For every test here."""
