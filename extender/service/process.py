"""The process: starts a service from a configuration, and stops it without losing a request."""

import asyncio
import contextlib
import os
import resource
import signal
from collections.abc import Callable
from functools import partial

import structlog

from extender.config.tree import Config
from extender.fetcher.fetcher_client import open_fetcher
from extender.machine import THIS_MACHINE
from extender.service.cluster_view import open_cluster_view
from extender.service.compose import open_service

log = structlog.get_logger()

# Twice what all listeners accept, and few enough for what still closes each of them in a child process.
_MOST = 4_096


def raise_descriptor_limit() -> None:
    """Raises the soft limit of open files, often 1,024, towards the hard one. Go's programs do so at their start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(_MOST, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    with contextlib.suppress(OSError, ValueError):  # a limit that cannot be raised is no reason not to serve
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def run_service(config: Config) -> None:
    """Serves until SIGTERM or SIGINT, then drains. Before all is open either signal ends the opening in order.

    Whatever has not ended when the grace period is over, such as a request to an API server that does not answer, ends
    with the process.
    """
    opened, stop = asyncio.Event(), asyncio.Event()
    serving = asyncio.create_task(_serve(config, opened, stop))
    over: list[asyncio.TimerHandle] = []

    def end() -> None:
        if stop.is_set():
            return
        over.append(asyncio.get_running_loop().call_later(config.shutdown.grace_seconds, _exit_at_once))
        if not opened.is_set():
            serving.cancel()
        stop.set()

    _on_stop(end)
    try:
        await serving
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
    finally:
        for timer in over:
            timer.cancel()
    log.info("service.stopped")


def _exit_at_once() -> None:
    log.warning("service.cut_short")
    os._exit(0)


async def _serve(config: Config, opened: asyncio.Event, stop: asyncio.Event) -> None:
    raise_descriptor_limit()
    async with (
        open_cluster_view(config, THIS_MACHINE) as cluster_view,
        open_service(config, cluster_view, partial(open_fetcher, log_level=config.log.level), THIS_MACHINE),
    ):
        opened.set()
        await stop.wait()
        log.info("service.stopping", grace_seconds=config.shutdown.grace_seconds)


async def wait_for_stop() -> None:
    """Returns when SIGTERM or SIGINT arrives; from this call on neither signal has another effect."""
    stop = asyncio.Event()
    _on_stop(stop.set)
    await stop.wait()


def _on_stop(call: Callable[[], None]) -> None:
    """Has `call` called for each SIGTERM and SIGINT, which have no other effect from then on."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, call)
