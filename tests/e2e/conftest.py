"""One real control plane for the whole end-to-end run, emptied after each test.

Whoever runs these tests wants them to run, so missing programs are a failure. Only the tests with real nodes are
skipped, with the reason, where the machine cannot run one: it takes root, namespaces and cgroups. With the environment
variable MULTIARCH_REAL_NODES=required, which `.ci/run` sets, they fail instead.

With `-n 3`, as `make e2e` runs them, each of three processes has a control plane of its own. The tests of a file run in
one process, but for those that run real nodes, which compare the whole machine before and after, or our image: all of
these run in one. A module whose tests take these fixtures by another way says so with `of_the_machine`.
"""

from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.api_client import ApiClient, connect, empty
from testbed.binaries import KUBECTL, Binaries, BinariesMissing, build, find_binaries, find_controller_manager
from testbed.chart import HelmMissing, find_helm
from testbed.control_plane import LocalCluster
from testbed.debian_package import ProgramMissing
from testbed.debian_prometheus import find_prometheus
from testbed.embedded_registry import EmbeddedRegistry
from testbed.image_builder import BuildahMissing, Image, ImageBuilder, image_builder
from testbed.nodes.programs import Containerd, NodePrograms
from tests.e2e.node_installation import InstallationPrograms
from tests.e2e.policies import ApplyPolicies, applied_policies
from tests.e2e.releases import HelmRelease, PlayedRelease, open_helm_release, open_played_release
from tests.e2e.running import RealImages, find_or_skip, find_programs, open_real_images, skip
from tests.e2e.world import Tally, World, open_world

PROJECT = Path(__file__).parents[2]
TALLY = pytest.StashKey[Tally]()
_FAILURE_CHARACTERS = 2_000
_TEST_SECONDS = 1200
_OF_THE_MACHINE = {"node_programs", "builder"}
"""The fixtures of the tests that run real nodes, and of those of our image, which is then built once for all."""


_LONG = {"test_pages.py", "test_quickstart.py", "test_gate_life_cycle.py"}
"""The files that take longest beside those tests, and therefore begin early."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rounds", type=int, default=1, help="how often each way to run 32 pods on real nodes is run")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "e2e: runs etcd, kube-apiserver and kube-scheduler as processes")
    config.addinivalue_line("markers", "of_the_machine: runs real nodes, after all others that do, in one process")
    config.stash[TALLY] = Tally()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups the tests for pytest-xdist: by file, and all of the machine together; the longest come first."""
    items.sort(key=lambda item: (not _is_of_the_machine(item), item.path.name not in _LONG))
    for item in items:
        item.add_marker(pytest.mark.timeout(_TEST_SECONDS, func_only=True))  # fixtures build programs, in minutes
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group("machine" if _is_of_the_machine(item) else item.path.name))


def _is_of_the_machine(item: pytest.Item) -> bool:
    fixtures = set(item.fixturenames) if isinstance(item, pytest.Function) else set()
    return bool(_OF_THE_MACHINE & fixtures) or item.get_closest_marker("of_the_machine") is not None


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["tally"] = session.config.stash[TALLY].numbers()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    if output := getattr(node, "workeroutput", None):
        node.config.stash[TALLY].add(output["tally"])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if lines := config.stash[TALLY].lines():
        terminalreporter.section("placements and figures")
        terminalreporter.write_line("\n".join(lines))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the ends of the programs' logs to the report of a failed test, and the failure again, below them."""
    report = yield
    cluster, world = item.funcargs.get("control_plane"), item.funcargs.get("world")
    if report.failed and isinstance(cluster, LocalCluster):
        report.sections.append(("control plane", cluster.logs()))
    if report.failed and isinstance(world, World):
        report.sections.append(("services", world.logs()))
    if report.failed and call.excinfo:
        report.sections.append(("failure", f"{call.excinfo.typename}: {str(call.excinfo.value)[:_FAILURE_CHARACTERS]}"))
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
def controller_manager(pytestconfig: pytest.Config) -> Path:
    """The program kube-controller-manager, which is built when a test first asks for it."""
    return find_or_skip(pytestconfig, find_controller_manager)


@pytest.fixture(scope="session")
def helm_program() -> Path:
    """The newest helm; a test that takes it is skipped without one, or fails where everything must run."""
    try:
        return find_helm()
    except HelmMissing as exc:
        skip(str(exc))


@pytest.fixture(scope="session")
def node_programs(pytestconfig: pytest.Config) -> NodePrograms:
    """The programs of real nodes, with Debian's containerd. A first build says so on the terminal."""
    return find_programs(pytestconfig, Containerd.DEBIAN)


@pytest.fixture
def installation_programs(
    binaries: Binaries, node_programs: NodePrograms, controller_manager: Path, helm_program: Path
) -> InstallationPrograms:
    return InstallationPrograms(binaries, node_programs, controller_manager, helm_program)


@pytest.fixture(scope="session")
def builder() -> Iterator[ImageBuilder]:
    try:
        with image_builder() as building:
            yield building
    except BuildahMissing as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="session")
def image(builder: ImageBuilder) -> Image:
    """The image of this checkout, of the name `first`."""
    return builder.build(PROJECT, "first")


@pytest.fixture(scope="session")
def tally(pytestconfig: pytest.Config) -> Tally:
    return pytestconfig.stash[TALLY]


@pytest.fixture(scope="session")
def rounds(pytestconfig: pytest.Config) -> int:
    """How often pods are run on real nodes in each way, from the option `--rounds`."""
    return int(pytestconfig.getoption("--rounds"))


@pytest.fixture(scope="session")
def real_images(node_programs: NodePrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealImages]:
    """A registry on loopback with images that run."""
    with open_real_images(tmp_path_factory.mktemp("registry")) as images:
        yield images


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


@pytest.fixture
async def apply_policies(api: ApiClient) -> AsyncIterator[ApplyPolicies]:
    """Applies the policies of these names; they are gone after the test."""
    async with applied_policies(api) as apply:
        yield apply


@pytest.fixture
async def registry() -> AsyncIterator[EmbeddedRegistry]:
    """A registry with an image for amd64 alone, and one for both architectures."""
    async with EmbeddedRegistry() as running:
        running.add_manifest("team/old", "1", "linux/amd64")
        running.add_index("team/new", "1", ["linux/amd64", "linux/arm64"])
        yield running


@pytest.fixture(scope="session")
def kubectl(pytestconfig: pytest.Config) -> Path:
    """The program, which is built when a test first asks for it."""
    return find_or_skip(pytestconfig, lambda: build(KUBECTL) / "kubectl")


@pytest.fixture(scope="session")
def prometheus() -> Path:
    """The program; a test that takes it is skipped without one."""
    try:
        return find_prometheus()
    except ProgramMissing as exc:
        skip(str(exc))


@pytest.fixture
async def helm(
    request: pytest.FixtureRequest, api: ApiClient, control_plane: LocalCluster, tmp_path: Path
) -> AsyncIterator[HelmRelease]:
    """A release that is not there yet, by the program that the test names; what is left of it is gone afterwards."""
    if request.param is None:
        skip("needs helm: `python -m testbed.binaries helm` builds it")
    async with open_helm_release(request.param, api, control_plane, tmp_path) as opened:
        yield opened


@pytest.fixture
async def release(
    helm: HelmRelease, api: ApiClient, control_plane: LocalCluster, registry: EmbeddedRegistry, tmp_path: Path
) -> AsyncIterator[PlayedRelease]:
    """A release to install, on a cluster with a node of each architecture. Nothing of it is left."""
    async with open_played_release(helm, api, control_plane, registry, tmp_path) as played:
        yield played
