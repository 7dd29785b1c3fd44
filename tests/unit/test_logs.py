"""Log lines: one form for the service and its libraries, and not too many of them."""

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest
import structlog

from extender.logs import (
    EVENT_LINES,
    FIELD_CHARACTERS,
    LIBRARY_LINES,
    TRACEBACK_CHARACTERS,
    LibraryHandler,
    RateLimit,
    configure_logs,
)
from testbed.clock import Clock


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Standard error with JSON from info on, until the test ends."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    root = logging.getLogger()
    level = root.level
    configure_logs("info", "json")
    yield stream
    structlog.reset_defaults()
    root.handlers = [each for each in root.handlers if not isinstance(each, LibraryHandler)]
    root.setLevel(level)


def lines_of(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize("name", ["asyncio", "aiohttp.server"])
def test_line_of_a_library_is_json(written: io.StringIO, name: str) -> None:
    """With its logger, its words and its traceback on one line."""
    try:
        print(1 // 0)
    except ZeroDivisionError:
        logging.getLogger(name).exception("it failed for %s", "x")
    (line,) = lines_of(written)
    said = {"level": "error", "event": "library.logged", "logger": name, "message": "it failed for x"}
    assert said.items() <= line.items()
    assert "ZeroDivisionError" in str(line["exception"])


def test_libraries_are_heard_from_warning_on_and_that_of_kubernetes_never(written: io.StringIO) -> None:
    """What they say about their usual work is not ours to write. That one raises what it logs, and quotes secrets."""
    import extender.cluster.client  # noqa: F401  # which says so

    logging.getLogger("aiohttp.access").info("GET /")
    logging.getLogger("asyncio").warning("slow")
    logging.getLogger("kubernetes_asyncio.config").error("{'token': 's3cret'}")
    assert [(line["level"], line["message"]) for line in lines_of(written)] == [("warning", "slow")]


class Limited:
    """A limit, a clock and the lines that came through."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.limit = RateLimit(lambda _logger, _method, event: json.dumps(event), self.clock)
        self.lines: list[dict[str, object]] = []

    def write(self, name: str, **fields: str) -> None:
        try:
            text = self.limit(None, "info", {"event": name, **fields})
        except structlog.DropEvent:
            return
        self.lines += map(json.loads, text.splitlines())


def test_lines_of_one_event_are_limited_and_their_number_is_said() -> None:
    """Other events are not affected; the next second begins with how many lines are missing."""
    limited = Limited()
    for _ in range(EVENT_LINES + 7):
        limited.write("lookup.failed")
    limited.write("watch.lost")
    assert [line["event"] for line in limited.lines] == ["lookup.failed"] * EVENT_LINES + ["watch.lost"]
    limited.lines.clear()
    limited.clock.advance(1)
    limited.write("watch.lost")
    limited.write("lookup.failed")
    assert [line["event"] for line in limited.lines] == ["lines.dropped", "watch.lost", "lookup.failed"]
    assert (limited.lines[0]["of"], limited.lines[0]["lines"]) == ("lookup.failed", 7)


def test_each_library_has_a_limit_of_its_own() -> None:
    """One that floods does not hide another."""
    limited = Limited()
    for _ in range(LIBRARY_LINES + 1):
        limited.write("library.logged", logger="asyncio")
    limited.write("library.logged", logger="aiohttp.server")
    assert [line["logger"] for line in limited.lines] == ["asyncio"] * LIBRARY_LINES + ["aiohttp.server"]
    limited.clock.advance(1)
    limited.write("watch.lost")
    assert [line.get("logger") for line in limited.lines[-2:]] == ["asyncio", None]


def test_long_texts_are_cut_off(written: io.StringIO) -> None:
    """Whoever names an image, a pod or a host may make its name a megabyte; the end of a traceback stays."""
    try:
        print(dict[str, int]()["y" * 1_000_000])
    except KeyError:
        structlog.get_logger().exception("lookup.crashed", image="x" * 1_000_000, pods=3)
    logging.getLogger("aiohttp.server").warning("z" * 1_000_000)
    line, of_library = lines_of(written)
    assert of_library["message"] == "z" * FIELD_CHARACTERS + "…"
    assert line["image"] == "x" * FIELD_CHARACTERS + "…"
    assert line["pods"] == 3
    assert len(str(line["exception"])) == TRACEBACK_CHARACTERS
    assert max(map(len, written.getvalue().splitlines())) < 20_000


def test_an_event_for_a_person_shows_the_characters_of_a_text(
    written: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a tenant wrote moves no cursor, and a traceback keeps its lines."""
    monkeypatch.setattr(sys, "stderr", written)
    configure_logs("info", "console")
    try:
        raise_with("c\x1b[2Jd")
    except ValueError:
        structlog.get_logger().exception("lookup.failed", image="a\x1b[31m\u202eb")
    lines = written.getvalue().split("\n")
    assert all(map(str.isprintable, lines))
    assert r" image=a\u001b[31m\u202eb" in lines[0]
    assert lines[-2] == r"ValueError: c\u001b[2Jd"


def raise_with(text: str) -> None:
    raise ValueError(text)
