"""The program helm, without which tests of the chart are skipped, and say so. `.ci/run` builds it."""

from pathlib import Path

import pytest

from testbed.chart import HelmMissing, find_helm


@pytest.fixture(scope="session")
def helm() -> Path:
    try:
        return find_helm()
    except HelmMissing as exc:
        pytest.skip(str(exc))
