"""The quickstart as a new user does it: every command of its section on helm, on the cluster that it starts."""

import os
import tempfile
from pathlib import Path

import pytest

from testbed.binaries import KUBECTL, Binaries, build
from testbed.playground import CHECKOUT, ENVIRONMENT
from tests.e2e.running import find_or_skip
from tests.e2e.world import Tally
from tools.docs.quickstart_walk import TRANSCRIPT, walk_through

pytestmark = pytest.mark.e2e


@pytest.fixture
def clients(pytestconfig: pytest.Config, controller_manager: Path, helm_program: Path) -> None:
    """helm, which takes long to build, and kubectl, which is built here."""
    find_or_skip(pytestconfig, lambda: build(KUBECTL))


@pytest.mark.usefixtures("clients")
async def test_each_command_prints_what_the_page_says(binaries: Binaries, tally: Tally) -> None:
    """None fails, and nothing is left once the cluster has ended; the transcript is kept."""
    TRANSCRIPT.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:  # tmp_path is too long for a socket
        walk = await walk_through(print, {**os.environ, "TMPDIR": folder})
        assert list(Path(folder).iterdir()) == []
    tally.figures.append(walk.summary)
    assert walk.differences == []
    assert walk.compared >= 6
    assert TRANSCRIPT.read_text().startswith(walk.transcript)
    assert not (CHECKOUT / ENVIRONMENT).exists()
