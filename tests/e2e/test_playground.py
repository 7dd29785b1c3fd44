"""`python -m testbed.playground --nodes real`: what it shows, and nothing is left of it."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from extender.placement.annotations import REASON
from testbed.api_client import ApiClient, connect
from testbed.binaries import Binaries
from testbed.nodes.programs import NodePrograms
from testbed.objects import pod
from tests.e2e.running import Outcome, observe

pytestmark = [pytest.mark.e2e, pytest.mark.slow]  # test_quickstart takes the walk on fake nodes


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


async def test_real_nodes_show_what_the_service_spares_a_pod(
    binaries: Binaries, node_programs: NodePrograms, tmp_path: Path
) -> None:
    """The pod that is looked at waits with the reason, the one that is ignored crashes."""
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
    reason = f"nodeSelector allows no node that the images run on: image {images['lost']} is built only for linux/amd64"
    assert printed == [f"Pending: {reason}", "CrashLoopBackOff", "exec /hello: exec format error"]
    assert list(tmp_path.iterdir()) == []
