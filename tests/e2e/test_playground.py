"""`python -m testbed.playground`: it says how to reach it, places pods as promised, and leaves nothing."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.api_client import connect
from testbed.binaries import Binaries
from testbed.objects import pod

pytestmark = pytest.mark.e2e


async def read_until(output: asyncio.StreamReader, last: str) -> list[str]:
    """The lines up to the one that begins with `last`, or to the end."""
    lines: list[str] = []
    async for line in output:
        lines.append(line.decode().strip())
        if lines[-1].startswith(last):
            break
    return lines


async def test_the_playground_does_what_it_says_and_leaves_nothing_behind(binaries: Binaries, tmp_path: Path) -> None:
    """The images that it names are placed by the second scheduler; after Ctrl-C its exit is clean, its files gone."""
    playground = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "testbed.playground",
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert playground.stdout is not None
    try:
        async with asyncio.timeout(60):
            lines = await read_until(playground.stdout, "Ctrl-C")
            [kubeconfig] = [Path(line.partition("=")[2]) for line in lines if line.startswith("export KUBECONFIG=")]
            commands = [line.split() for line in lines if line.startswith("kubectl run")]
            images = {words[2]: words[3].removeprefix("--image=") for words in commands}
            async with connect(kubeconfig) as api:
                await api.create_all(pod(name, images[name]) for name in ("web", "legacy", "edge"))
                bound = {name: await api.wait_until_bound(name) for name in ("web", "legacy", "edge")}
                scheduler = (await api.get("Pod", "web"))["spec"]["schedulerName"]
            playground.send_signal(signal.SIGINT)
            assert await playground.wait() == 0
    finally:
        if playground.returncode is None:
            playground.kill()
            await playground.wait()
    assert scheduler == "multiarch-scheduler"
    assert {name: node.partition("-")[0] for name, node in bound.items()} == {
        "web": "arm64",
        "legacy": "amd64",
        "edge": "arm64",
    }
    assert list(tmp_path.iterdir()) == []
