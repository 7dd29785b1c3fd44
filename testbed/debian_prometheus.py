"""Debian's Prometheus (2.42): its promtool, and a server on loopback that scrapes and judges rules.

Nothing is installed: the package is unpacked into the cache folder, once.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from testbed.debian_package import find_package
from testbed.eventually import eventually
from testbed.processes import Process, free_port

_PACKAGE = "prometheus"
_END_SECONDS = 10.0
CHANGE_SECONDS = 60.0
"""How long `until` waits."""


def find_promtool() -> Path:
    """Returns the path of the promtool program. Raises ProgramMissing."""
    return find_package(_PACKAGE) / "usr" / "bin" / "promtool"


def find_prometheus() -> Path:
    """Returns the path of the prometheus program. Raises ProgramMissing."""
    return find_package(_PACKAGE) / "usr" / "bin" / _PACKAGE


class DebianPrometheus:
    """`with DebianPrometheus(program, folder, target, rules) as prometheus:` runs a server on 127.0.0.1 until the end.

    It scrapes `target` (host:port) and judges the file `rules` at each `interval`; `prometheus.url` has its API.
    """

    def __init__(
        self,
        program: Path,
        folder: Path,
        target: str,
        rules: Path,
        *others: Mapping[str, Any],
        interval: str = "200ms",
    ) -> None:
        """`others` are more scrape configurations, as Prometheus reads them."""
        own = {"job_name": "multiarch-extender", "static_configs": [{"targets": [target]}]}
        configuration = {
            "global": {"scrape_interval": interval, "scrape_timeout": "200ms", "evaluation_interval": interval},
            "rule_files": [str(rules)],
            "scrape_configs": [own, *others],
        }
        (folder / "prometheus.yml").write_bytes(msgspec.yaml.encode(configuration))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._log = folder / "prometheus.log"
        self._command = [
            str(program),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]

    def __enter__(self) -> Self:
        self._process = Process(_PACKAGE, self._command, self._log)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.stop(_END_SECONDS)


def shortened(rules: str, window: str) -> str:
    """Returns rules that look back over `window`, such as `2s`, and wait for none."""
    text = re.sub(r"    for: \d+[ms]\n", "", rules)
    return re.sub(r"offset \d+[mhd]\b", f"offset {window}", re.sub(r"\[\d+[mhd]\]", f"[{window}]", text))


def firing(alert: str, **labels: str) -> str:
    """Returns the query of an alert that fires, with these labels."""
    wanted = {"alertname": alert, "alertstate": "firing", **labels}
    return "ALERTS{" + ",".join(f'{name}="{value}"' for name, value in wanted.items()) + "}"


async def values(session: aiohttp.ClientSession, server: DebianPrometheus, query: str) -> list[float]:
    """Returns the values of a query; none before the server answers."""
    return [float(sample["value"][1]) for sample in await _ask(session, server, query)]


async def _ask(session: aiohttp.ClientSession, server: DebianPrometheus, query: str) -> list[dict[str, Any]]:
    try:
        async with session.get(f"{server.url}/api/v1/query", params={"query": query}) as response:
            if response.status != 200:
                return []
            answer: dict[str, Any] = await response.json()
    except aiohttp.ClientConnectionError:
        return []
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


async def label_values(session: aiohttp.ClientSession, server: DebianPrometheus, query: str, label: str) -> list[str]:
    """Returns what a label is in each result of a query; none before the server answers."""
    return [sample["metric"].get(label, "") for sample in await _ask(session, server, query)]


async def until(session: aiohttp.ClientSession, server: DebianPrometheus, query: str, *, found: bool) -> None:
    """Returns when the query has a result, or has none any more. Raises TimeoutError."""
    await eventually(lambda: values(session, server, query), lambda said: bool(said) == found, seconds=CHANGE_SECONDS)
