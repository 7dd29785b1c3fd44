"""One real control plane for the whole end-to-end run, emptied after each test.

Nothing is skipped: whoever runs these tests wants them to run, so missing programs are a failure.
"""

from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest

from testbed.api_client import ApiClient, connect, empty
from testbed.binaries import Binaries, BinariesMissing, find_binaries
from testbed.control_plane import LocalCluster
from tests.e2e.world import Tally, World, open_world

TALLY = pytest.StashKey[Tally]()


def pytest_configure(config: pytest.Config) -> None:
    """Declares the marker, and creates the count of placed pods."""
    config.addinivalue_line("markers", "e2e: runs etcd, kube-apiserver and kube-scheduler as processes")
    config.stash[TALLY] = Tally()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints how many pods were placed, and the measured figures."""
    if lines := config.stash[TALLY].lines():
        terminalreporter.section("placements and figures")
        terminalreporter.write_line("\n".join(lines))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the ends of the programs' logs to the report of a failed test."""
    report = yield
    cluster, world = item.funcargs.get("control_plane"), item.funcargs.get("world")
    if report.failed and isinstance(cluster, LocalCluster):
        report.sections.append(("control plane", cluster.logs()))
    if report.failed and isinstance(world, World):
        report.sections.append(("services", world.logs()))
    return report


@pytest.fixture(scope="session")
def binaries(pytestconfig: pytest.Config) -> Binaries:
    """The programs. A first build takes minutes and says so on the terminal."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        try:
            return find_binaries()
        except BinariesMissing as exc:
            missing = str(exc)
    pytest.fail(missing, pytrace=False)


@pytest.fixture(scope="session")
def control_plane(binaries: Binaries) -> Iterator[LocalCluster]:
    """etcd and kube-apiserver, running during the whole run. Tests start the schedulers (`running_scheduler`)."""
    with LocalCluster(binaries) as cluster:
        yield cluster


@pytest.fixture
async def api(control_plane: LocalCluster) -> AsyncIterator[ApiClient]:
    """The administrator's client. Fake nodes and pods are deleted after the test."""
    async with connect(control_plane.kubeconfig) as client:
        yield client
        await empty(client)


@pytest.fixture
async def world(
    control_plane: LocalCluster, api: ApiClient, tmp_path: Path, pytestconfig: pytest.Config
) -> AsyncIterator[World]:
    """A registry, and the service, webhook and schedulers that the test starts. All end after the test."""
    async with open_world(control_plane, api, tmp_path, pytestconfig.stash[TALLY]) as opened:
        yield opened
