"""Files of the settings that are named pipes: `serve` says which, where it would wait for somebody who writes."""

import asyncio
import os
from pathlib import Path

import pytest

from testbed.forked_commands import run
from tests.integration.test_command_line import NO_CLUSTER

PLUGINS = "registry.credential_providers"
SERVED = "admission.listen=127.0.0.1:0"
HOST = '[host."https://mirror.example.com"]\n'
REDIS = "cache.url=rediss://localhost:1/0"


@pytest.mark.parametrize(
    "assignments",
    [
        ("registry.docker_config=PIPE",),
        ("registry.ca_files=[PIPE]",),
        (f"{PLUGINS}.config=PIPE", f"{PLUGINS}.bin_dir=/"),
        ("registry.mirrors=PIPE",),
        ("registry.mirrors=PIPE.yaml",),
        ("registry.mirrors=PIPE.conf",),
        ("cache.key_file=PIPE",),
        (f"{REDIS}?password_file=PIPE",),
        (f"{REDIS}?ca_file=PIPE",),
        (f"{REDIS}?certificate_file=PIPE&key_file=PIPE",),
        (SERVED, "admission.tls={certificate: PIPE, key: /k}"),
        ("cluster=PIPE",),
    ],
    ids=lambda assignments: assignments[-1].partition("=")[0],
)
async def test_a_setting_names_a_pipe(assignments: tuple[str, ...], tmp_path: Path) -> None:
    for name in ("pipe", "pipe.yaml", "pipe.conf"):
        os.mkfifo(tmp_path / name)
    await _refused(str(tmp_path / "pipe"), [each.replace("PIPE", str(tmp_path / "pipe")) for each in assignments])


@pytest.mark.parametrize(
    ("files", "pipe"),
    [
        ({}, "certs.d/quay.io/hosts.toml"),
        ({}, "certs.d/quay.io/ca.crt"),
        ({"certs.d/quay.io/a.key": ""}, "certs.d/quay.io/a.cert"),
        ({"certs.d/quay.io/hosts.toml": f'{HOST}ca = "ca.pem"'}, "certs.d/quay.io/ca.pem"),
        ({"certs.d/quay.io/hosts.toml": f'{HOST}client = "client.pem"'}, "certs.d/quay.io/client.pem"),
        ({"registries.conf": ""}, "registries.conf.d/1.conf"),
        ({"registries.conf": ""}, "certs.d/quay.io/ca.crt"),
        ({"registries.yaml": "configs: {quay.io: {tls: {ca_file: FOLDER/ca.pem}}}"}, "ca.pem"),
    ],
)
async def test_a_file_of_mirrors_is_a_pipe(files: dict[str, str], pipe: str, tmp_path: Path) -> None:
    for name in (*files, pipe):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (tmp_path / name).write_text(text.replace("FOLDER", str(tmp_path)))
    os.mkfifo(tmp_path / pipe)
    main = next((name for name in files if name.startswith("registries.")), "certs.d")
    await _refused(str(tmp_path / pipe), [f"registry.mirrors={tmp_path / main}"])


async def _refused(pipe: str, assignments: list[str]) -> None:
    async with asyncio.timeout(60):
        code, out, err = await run("serve", *NO_CLUSTER, *(f"--set={each}" for each in assignments))
    assert (code, out) == (2, "")
    assert pipe in err.rpartition("error: ")[2]
