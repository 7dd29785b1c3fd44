"""Configures how log events are written to standard error: as JSON for machines, or in columns for a person.

An event is a constant `noun.past_verb`; the variable parts are fields. What libraries log is the event
`library.logged`. Importing this module configures nothing.
"""

import logging
import sys
import time
from collections.abc import Callable, MutableMapping
from typing import Any, Literal

from extender.printable import printable

# structlog imports rich where it can, for tracebacks that are never written here: 3 MB of each process.
_rich = sys.modules.get("rich")
sys.modules["rich"] = None  # type: ignore[assignment]  # which is how an import is made to fail
try:
    import structlog
finally:
    del sys.modules["rich"]
    if _rich:
        sys.modules["rich"] = _rich

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
# Lines a second of one event, or of one logger of a library, whose lines often have a traceback. Who can cause an event
# at will then fills neither the disk nor the time of the event loop.
EVENT_LINES, LIBRARY_LINES = 100, 10
# Characters of a field that are written, and of a traceback. A reference that can be pulled has 800 at most, but a pod
# may state a megabyte, and so may whoever calls the scheduler's verbs.
FIELD_CHARACTERS, TRACEBACK_CHARACTERS = 2048, 16_384

log = structlog.get_logger()
Renderer = Callable[[object, str, MutableMapping[str, Any]], str | bytes]


def configure_logs(
    level: Literal["debug", "info", "warning", "error"], form: Literal["json", "console"] | None
) -> None:
    """Writes every event of `level` and above as a line on standard error from now on.

    Without a form it is `console` where standard error is a terminal, else `json`. Libraries' lines are written from
    warning on.
    """
    is_terminal = sys.stderr.isatty()
    last: Renderer = (
        _for_a_person(structlog.dev.ConsoleRenderer(colors=is_terminal))
        if form == "console" or (form is None and is_terminal)
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
            RateLimit(_with_traceback(last), time.monotonic),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers = [*(each for each in root.handlers if not isinstance(each, LibraryHandler)), LibraryHandler()]
    root.setLevel(max(logging.WARNING, LEVELS[level]))


def _for_a_person(last: Renderer) -> Renderer:
    """Shows what others wrote as text; lines of a traceback stay lines."""

    def render(logger: object, method: str, event: MutableMapping[str, Any]) -> str | bytes:
        for name, value in event.items():
            if isinstance(value, str):
                event[name] = "\n".join(map(printable, value.split("\n"))) if name == "exception" else printable(value)
        return last(logger, method, event)

    return render


def _with_traceback(last: Renderer) -> Renderer:
    """Formats the traceback of a line, which takes longer than all else and is not done for dropped lines."""

    def render(logger: object, method: str, event: MutableMapping[str, Any]) -> str | bytes:
        return last(logger, method, _shorten(structlog.processors.format_exc_info(logger, method, event)))

    return render


def _shorten(event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Cuts off long texts in place; of a traceback the end stays, which says most."""
    for name, text in event.items():
        if name == "exception":
            event[name] = text[-TRACEBACK_CHARACTERS:]
        elif isinstance(text, str) and len(text) > FIELD_CHARACTERS:
            event[name] = f"{text[:FIELD_CHARACTERS]}…"
    return event


class RateLimit:
    """The last processor: renders an event, or drops it if too many of its kind came in this second.

    The first line of a later second comes after a line `lines.dropped` for each kind of which lines were dropped.
    """

    def __init__(self, render: Renderer, clock: Callable[[], float]) -> None:
        self._render = render
        self._clock = clock
        self._second = 0
        # Lines of this second by event and, for `library.logged`, the library's logger. Both are constants of code.
        self._lines: dict[tuple[str, str], int] = {}

    def __call__(self, logger: object, method: str, event: MutableMapping[str, Any]) -> str:
        """The line, and lines about dropped ones before it.

        Raises:
            DropEvent: too many lines of this kind came in this second.
        """
        reports = [str(self._render(logger, "warning", report)) for report in self._begin_second(event.get("ts", ""))]
        kind = (str(event.get("event", "")), str(event.get("logger", "")))
        self._lines[kind] = lines = self._lines.get(kind, 0) + 1
        if lines > _limit_of(kind):
            raise structlog.DropEvent
        return "\n".join([*reports, str(self._render(logger, method, event))])

    def _begin_second(self, now: str) -> list[dict[str, Any]]:
        """Begins to count anew with each second; returns an event for each kind that was over its limit before."""
        second = int(self._clock())
        if second == self._second:
            return []
        self._second, counted, self._lines = second, self._lines, {}
        event = "lines.dropped"
        return [
            {"event": event, "level": "warning", "ts": now, "of": kind[0], "logger": kind[1], "lines": lines - limit}
            for kind, lines in counted.items()
            if lines > (limit := _limit_of(kind))
        ]


def _limit_of(kind: tuple[str, str]) -> int:
    return LIBRARY_LINES if kind[1] else EVENT_LINES


class LibraryHandler(logging.Handler):
    """Writes what libraries log as events."""

    def emit(self, record: logging.LogRecord) -> None:
        event = "library.logged"
        level = logging.ERROR if record.levelno >= logging.ERROR else logging.WARNING
        try:
            log.log(level, event, logger=record.name, message=record.getMessage(), exc_info=record.exc_info)
        except Exception:  # noqa: BLE001  # a line that cannot be written must not end its caller
            self.handleError(record)
