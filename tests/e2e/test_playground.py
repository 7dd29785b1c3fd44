"""`python -m testbed.playground --nodes real`: what the quickstart shows, and nothing is left of it."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from extender.placement.policy import REASON
from testbed.api_client import ApiClient, connect
from testbed.binaries import Binaries
from testbed.nodes.programs import NodePrograms
from testbed.objects import pod
from tests.e2e.running import Outcome, observe

pytestmark = [pytest.mark.e2e, pytest.mark.slow]  # test_quickstart takes the walk on fake nodes

QUICKSTART = Path(__file__).resolve().parents[2] / "docs" / "quickstart.md"


async def read_until(output: asyncio.StreamReader, last: str) -> list[str]:
    lines: list[str] = []
    async for line in output:
        lines.append(line.decode().strip())
        if lines[-1].startswith(last):
            break
    return lines


class Playground(NamedTuple):
    """A playground that runs: a client of its cluster, and the images that it names, by the names of their pods."""

    api: ApiClient
    images: dict[str, str]


@asynccontextmanager
async def running_playground(folder: Path, *arguments: str) -> AsyncIterator[Playground]:
    """Runs a playground whose files are in `folder`; after the block it must end by Ctrl-C, and cleanly."""
    playground = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "testbed.playground",
        *arguments,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    assert playground.stdout is not None
    try:
        async with asyncio.timeout(90):
            lines = await read_until(playground.stdout, "Ctrl-C")
            [kubeconfig] = [Path(line.partition("=")[2]) for line in lines if line.startswith("export KUBECONFIG=")]
            commands = [line.split() for line in lines if line.startswith("kubectl run")]
            async with connect(kubeconfig) as api:
                yield Playground(api, {words[2]: words[3].removeprefix("--image=") for words in commands})
            playground.send_signal(signal.SIGINT)
            assert await playground.wait() == 0
    finally:
        if playground.returncode is None:
            playground.kill()
            await playground.wait()


async def test_the_quickstart_shows_what_real_nodes_do(
    binaries: Binaries, node_programs: NodePrograms, tmp_path: Path
) -> None:
    """Its transcript is what kubectl prints: the pod that is looked at waits, the one that is ignored crashes."""
    to_arm64 = {"nodeSelector": {"kubernetes.io/arch": "arm64"}}
    async with running_playground(tmp_path, "--nodes", "real") as (api, images):
        await api.create_all(pod(name, images[name]) for name in ("web", "legacy", "edge"))
        ignored = {"multiarch-extender.io/mode": "ignore"}
        await api.create(pod("blind", images["blind"], annotations=ignored, spec=to_arm64))
        seen = await observe(api, "default", 4)
        await api.create(pod("lost", images["lost"], spec=to_arm64))
        assert "didn't match Pod's node affinity/selector" in await api.wait_for_event("lost")
        waiting = await api.wait_for(
            "Pod",
            lambda found: "waiting" in found["status"]["containerStatuses"][0]["state"],
            fieldSelector="metadata.name=blind",
        )
        lost = await api.get("Pod", "lost")
        log = await api.log("blind")
    assert {name: each.outcome for name, each in seen.items()} == {
        "web": Outcome.RUNS,
        "legacy": Outcome.RUNS,
        "edge": Outcome.RUNS,
        "blind": Outcome.CRASHES,
    }
    printed = [
        f"{lost['status']['phase']}: {lost['metadata']['annotations'][REASON]}",
        waiting["status"]["containerStatuses"][0]["state"]["waiting"]["reason"],
        log.strip(),
    ]
    assert [re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:5000", line) for line in printed] == transcript()
    assert list(tmp_path.iterdir()) == []


def transcript() -> list[str]:
    [block] = re.findall(r"```text\n(\$ kubectl.*?)```", QUICKSTART.read_text(), re.DOTALL)
    return [line for line in block.splitlines() if not line.startswith("$")]
