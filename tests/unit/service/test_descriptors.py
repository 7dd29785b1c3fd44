"""How many files the process may open."""

import resource
from collections.abc import Iterator

import pytest

from extender.server.http import ADMISSION, SCHEDULER, Limits
from extender.service.process import raise_descriptor_limit

MOST = 4_096


@pytest.fixture
def _restored_limit() -> Iterator[None]:
    """Sets the limit of open files back after the test."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("_restored_limit")
def test_soft_limit_of_open_files_is_raised_and_never_lowered() -> None:
    """As far as the hard limit allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    raise_descriptor_limit()
    raised, same = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert raised == (MOST if hard == resource.RLIM_INFINITY else min(MOST, hard))
    assert same == hard
    raise_descriptor_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (raised, same)


def test_limit_is_twice_what_the_listeners_accept() -> None:
    """Else a flood of connections would leave no descriptor for the cluster and the store."""
    operations_and_metrics = 2 * Limits().connections
    assert 2 * (SCHEDULER.connections + ADMISSION.connections + operations_and_metrics) <= MOST
