"""Shows webhook, filter and prioritize on an embedded registry and four nodes, over real HTTP, without a cluster.

`python -m testbed.demo [--keep]` exits with 1 if an answer is not as expected.
"""

import argparse
import asyncio
import statistics
import sys
from collections.abc import Sequence
from functools import partial

import aiohttp
import msgspec
from rich.console import Console
from rich.table import Table

from extender.config.reading import load_config
from extender.config.tree import Config
from extender.fetcher.sources import open_local_sources
from extender.logs import configure_logs
from extender.machine import THIS_MACHINE
from extender.service.cluster_view import ClusterView
from extender.service.compose import Service, open_service
from extender.service.process import wait_for_stop
from testbed.demo.story import (
    NODES,
    SCENES,
    Caller,
    Seen,
    arguments_of,
    fill_registry,
    pod_of,
    review_of,
    view_of_nodes,
)
from testbed.embedded_registry import EmbeddedRegistry

WARM_ROUNDS = 50


def main() -> int:
    """Runs the demonstration; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m testbed.demo")
    parser.add_argument("--keep", action="store_true", help="leave everything running and print curl lines to try")
    given = parser.parse_args()
    configure_logs("error", "console")
    surprises = asyncio.run(_run(Console(soft_wrap=False), keep=given.keep))
    for surprise in surprises:
        print(f"unexpected: {surprise}", file=sys.stderr)
    return 1 if surprises else 0


async def _run(console: Console, *, keep: bool) -> list[str]:
    async with EmbeddedRegistry() as registry:
        fill_registry(registry)
        config = _config(registry.host)
        open_sources = partial(open_local_sources, machine=THIS_MACHINE)
        async with (
            open_service(config, ClusterView(view_of_nodes()), open_sources, THIS_MACHINE) as service,
            aiohttp.ClientSession() as session,
        ):
            _print_cast(console, service, registry.host)
            caller = Caller(session, service.admission_url, service.scheduler_url, registry.host)
            cold = [await caller.play(scene) for scene in SCENES]
            _print_round(console, cold)
            cold_requests = registry.requests.total()
            warm = [await caller.play(scene) for _ in range(WARM_ROUNDS) for scene in SCENES]
            _print_latency(console, cold, warm, registry.requests.total() - cold_requests)
            surprises = [surprise for seen in (*cold, *warm) for surprise in seen.surprises()]
            if keep:
                await _stay(console, service, registry.host)
            return list(dict.fromkeys(surprises))


def _config(registry_host: str) -> Config:
    settings = {
        "cluster": "none",
        "cache.url": "'memory:'",
        "log.level": "error",
        "scheduler.listen": "127.0.0.1:0",
        "admission.listen": "127.0.0.1:0",
        "admission.tls": "null",
        "operations.listen": "127.0.0.1:0",
        "registry.plain_http": f"['{registry_host}']",
        "registry.allow": f"['{registry_host}']",
        "shutdown.grace_seconds": "1",
    }
    return load_config(None, [f"{path}={value}" for path, value in settings.items()])


def _print_cast(console: Console, service: Service, registry_host: str) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_row("image registry", registry_host)
    table.add_row("scheduler verbs", service.scheduler_url)
    table.add_row("webhook", service.admission_url)
    table.add_row("nodes", ", ".join(f"{name} ({architecture})" for name, architecture in NODES.items()))
    console.print(table, highlight=False)
    console.print()


def _print_round(console: Console, seen: Sequence[Seen]) -> None:
    for one in seen:
        table = Table.grid(padding=(0, 2))
        table.add_row("  webhook", f"tolerations added: {', '.join(one.tolerations) or 'none'}")
        table.add_row("", f"architectures required: {', '.join(one.required) or 'none'}")
        if one.error:
            table.add_row("  filter", f"not yet: {one.error}")
        else:
            table.add_row("  filter", f"kept {', '.join(one.kept)}")
            for reason in dict.fromkeys(one.refused.values()):
                names = [name for name, why in one.refused.items() if why == reason]
                table.add_row("", f"refused {', '.join(names)}: {reason}")
        scores = ", ".join(f"{name} {score}" for name, score in one.scores.items())
        table.add_row("  prioritize", scores or "no preference")
        console.print(f"[bold]{one.scene.title}[/]", highlight=False)
        console.print(table, highlight=False)
        console.print()


def _print_latency(console: Console, cold: Sequence[Seen], warm: Sequence[Seen], registry_requests: int) -> None:
    table = Table("verb", "first round", "later rounds, median", box=None, pad_edge=False, header_style="bold")
    for verb in cold[0].milliseconds:
        first = statistics.median(one.milliseconds[verb] for one in cold)
        later = statistics.median(one.milliseconds[verb] for one in warm)
        table.add_row(verb, f"{first:.2f} ms", f"{later:.2f} ms")
    console.print(
        f"The same pods {WARM_ROUNDS} more times, from memory ({registry_requests} requests to the registry):"
    )
    console.print(table, highlight=False)


async def _stay(console: Console, service: Service, registry_host: str) -> None:
    pod = pod_of(SCENES[1], registry_host)
    calls = {
        f"{service.scheduler_url}/scheduler/filter": arguments_of(pod),
        f"{service.admission_url}/admission/pods": review_of(pod),
    }
    console.print("\nEverything stays up until Ctrl-C. Try:\n")
    for url, document in calls.items():
        console.print(f"curl -s {url} -d '{msgspec.json.encode(document).decode()}'", highlight=False, soft_wrap=True)
        console.print()
    console.print(f"curl -s {service.operations_url}/readyz?verbose", highlight=False)
    await wait_for_stop()


if __name__ == "__main__":
    sys.exit(main())
