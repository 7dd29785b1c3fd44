"""What a replica counts, logs and keeps, where several replicas share a process.

The package counts and logs for its process, which has one service. Here each replica's tasks run in a context that
names its party, and `observing` has what they count and log noted with that party as well.
"""

import asyncio
import contextlib
import gc
import logging
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, MutableMapping, Sized
from types import FunctionType, MethodType, ModuleType, TracebackType
from typing import Any, cast
from unittest.mock import patch

import structlog
from prometheus_client import Gauge

from extender import metrics
from extender.metrics import REGISTRY, Count
from testbed.memory_listening import PARTY, Party

Log = dict[str, Any]


class Observed(Party):
    """A party whose counts, gauges and logs are noted."""

    def __init__(self, address: str, clock: Callable[[], float]) -> None:
        super().__init__(address)
        self.counts: dict[Count, float] = {}
        self.gauges: dict[Gauge, Callable[[], float]] = {}
        self.logs: list[Log] = []
        self.clock = clock

    def metrics(self) -> dict[str, float]:
        """Counters and gauges, by `name{value,value}` with the labels' values in their order."""
        found = {
            f"{name}{{{','.join(values)}}}": self.counts.get(child, 0.0)
            for name, children in metrics._COUNTS.items()  # noqa: SLF001  # nobody else lists them
            for values, child in children.items()
        }
        for name, child in _gauges().items():
            if child in self.gauges:
                found[name] = self.gauges[child]()
        return found


def _gauges() -> dict[str, Gauge]:
    """All gauges, or their children where they have a label."""
    found: dict[str, Gauge] = {}
    for parent in REGISTRY._collector_to_names:  # noqa: SLF001  # nobody else lists them
        if isinstance(parent, Gauge):
            children = getattr(parent, "_metrics", {(): parent})
            found |= {f"{parent._name}{{{','.join(values)}}}": child for values, child in children.items()}  # noqa: SLF001
    return found


@contextlib.contextmanager
def observing() -> Iterator[None]:
    """Notes with each `Observed` party what its tasks count and log, and writes nothing. TLS has no authorities."""
    before = structlog.get_config()
    structlog.configure(
        processors=[structlog.processors.add_log_level, structlog.processors.format_exc_info, _note],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=False,
    )
    handler = _Libraries()
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, [handler]
    try:
        with (
            patch.object(Count, "inc", _inc),
            patch.object(Gauge, "set_function", _set_function),
            patch.object(Gauge, "set", _set),
            patch.dict(os.environ, {"SSL_CERT_FILE": os.devnull}),
        ):
            yield
    finally:
        root.handlers = handlers
        structlog.configure(**before)


def _inc(self: Count, amount: float = 1) -> None:
    self.value += amount
    party = PARTY.get()
    if isinstance(party, Observed):
        party.counts[self] = party.counts.get(self, 0.0) + amount


def _set_function(self: Gauge, call: Callable[[], float]) -> None:
    party = PARTY.get()
    if isinstance(party, Observed):
        party.gauges[self] = call


def _set(self: Gauge, value: float) -> None:
    _set_function(self, lambda: value)


def _note(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    party = PARTY.get()
    if isinstance(party, Observed) and not party.is_gone:
        party.logs.append({"at": round(party.clock(), 6), **event})
    raise structlog.DropEvent


class _Libraries(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            event = {"event": "library.logged", "logger": record.name, "message": record.getMessage()}
            if record.exc_info:
                event["exception"] = logging.Formatter().formatException(record.exc_info)
            with contextlib.suppress(structlog.DropEvent):
                _note(None, "", {"level": record.levelname.lower(), **event})


_OURS = "extender."
_PASSED_OVER = (ModuleType, type, asyncio.AbstractEventLoop, Party, TracebackType)  # whose frames lead to all timers


def sizes_of(party: Observed) -> dict[str, int]:
    """How much each container has that the package's objects keep for a party, by `Class.attribute`, all together.

    It goes by what the party's tasks reach. Also `tasks`.
    """
    tasks = [each for each in party.tasks.values() if not each.done()]
    sizes, seen = Counter({"tasks": len(tasks)}), set[int]()
    waiting: deque[object] = deque(each.get_coro() for each in tasks)
    while waiting:
        found = waiting.popleft()
        if id(found) in seen or isinstance(found, _PASSED_OVER):
            continue
        seen.add(id(found))
        module = type(found).__module__
        if module.startswith(("testbed.", "tests.")):
            continue
        if module.startswith(_OURS):
            for name, size in _sizes_in(found):
                sizes[name] += size
        waiting.extend(_referents(found))
    return dict(sorted(sizes.items()))


def _referents(found: object) -> list[Any]:
    if isinstance(found, FunctionType):  # and not its globals
        return [*(found.__closure__ or ()), *(found.__defaults__ or ())]
    if isinstance(found, MethodType):
        return [found.__self__, found.__func__]
    return gc.get_referents(found)


def _sizes_in(found: object) -> Iterator[tuple[str, int]]:
    """Of what is changed in place."""
    own = getattr(found, "__dict__", {})
    slots = {name: getattr(found, name, None) for name in getattr(type(found), "__slots__", ())}
    for name, value in {**own, **slots}.items():
        is_ours = type(value).__module__.startswith(_OURS) and hasattr(value, "__len__") and not isinstance(value, str)
        if is_ours or isinstance(value, dict | list | set | deque):
            yield f"{type(found).__name__}.{name}", len(cast("Sized", value))
