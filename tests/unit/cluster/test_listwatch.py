"""List and watch: what is asked of the API server, in which order, and how soon again, under every kind of loss."""

import json
from collections.abc import Set
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from extender.cluster.client import ClusterRefused
from extender.cluster.gated_pods import GATED_PODS
from extender.cluster.listwatch import WATCH_SECONDS, ListWatch, Resource
from extender.cluster.views import NODES, PENDING_PODS
from extender.errors import ClusterError
from extender.metrics import REGISTRY
from testbed.clock import Clock
from tests.unit.cluster.scripted_api import LOST, ScriptedApi

NAMESPACES = Resource(name="namespaces", path="/api/v1/namespaces", list_accept="a", watch_accept="b")
GONE = ClusterRefused("too old", 410)


class EnoughPauses(Exception):
    """Ends `run` from outside, where a cancellation would."""


def page(*names: str, version: str = "10", more: str = "") -> bytes:
    items = [{"metadata": {"name": name}} for name in names]
    return json.dumps({"metadata": {"resourceVersion": version, "continue": more}, "items": items}).encode()


def event(kind: str, name: str = "", version: str = "", **others: Any) -> bytes:
    return json.dumps(
        {"type": kind, "object": {"metadata": {"name": name, "resourceVersion": version}} | others}
    ).encode()


EXPIRED = event("ERROR", code=410, reason="Expired", message="too old resource version")


class RecordingHandler:
    """Remembers what it was told, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def upsert(self, document: msgspec.Raw) -> None:
        name = msgspec.json.decode(document)["metadata"]["name"]
        if name == "odd":
            raise ValueError("an odd object")
        self.calls.append(("upsert", name))

    def delete(self, name: str) -> None:
        self.calls.append(("delete", name))

    def keep_only(self, names: Set[str]) -> None:
        self.calls.append(("keep_only", set(names)))


class Run:
    """A ListWatch run over a script, without time: `delays` are the pauses it asked for, the last of which ended it."""

    def __init__(self, reader: ScriptedApi, pauses: int = 1, chance: float = 0.0) -> None:
        self.reader = reader
        self.handler = RecordingHandler()
        self.delays: list[float] = []
        self.clock = Clock()
        self.pauses = pauses
        self.watch = ListWatch(
            reader, NAMESPACES, self.handler, clock=self.clock, random=lambda: chance, sleep=self._sleep
        )

    async def _sleep(self, seconds: float) -> None:
        self.delays.append(seconds)
        self.clock.advance(seconds)
        if len(self.delays) == self.pauses:
            raise EnoughPauses

    async def to_the_end(self) -> "Run":
        with pytest.raises(EnoughPauses):
            await self.watch.run()
        return self


async def test_list_is_read_in_pages_and_then_watched_from_its_version() -> None:
    """Every page is asked for with the token of the one before, and the watch begins at the list's version."""
    reader = ScriptedApi([page("a", "b", more="T1"), page("c", more="T2"), page("d")], [[]])
    run = await Run(reader).to_the_end()
    assert reader.lists == [
        {"limit": "250"},
        {"limit": "250", "continue": "T1"},
        {"limit": "250", "continue": "T2"},
    ]
    assert reader.watches == [
        {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": "10", "timeoutSeconds": "240"}
    ]
    assert run.handler.calls == [*(("upsert", name) for name in "abcd"), ("keep_only", {"a", "b", "c", "d"})]


async def test_selection_goes_with_list_and_watch_and_keys_have_the_namespace() -> None:
    """Objects of two namespaces may share a name."""
    items = [{"metadata": {"name": "web", "namespace": where, "resourceVersion": "5"}} for where in ("a", "b")]
    body = json.dumps({"metadata": {"resourceVersion": "10"}, "items": items}).encode()
    gone = json.dumps({"type": "DELETED", "object": items[1]}).encode()
    run = Run(ScriptedApi([body], [[gone]]))
    resource = Resource(name="namespaces", path=NAMESPACES.path, query={"labelSelector": "x=y"})
    run.watch = ListWatch(
        run.reader,
        resource,
        run.handler,
        clock=run.clock,
        random=lambda: 0.0,
        sleep=run._sleep,  # noqa: SLF001
    )
    await run.to_the_end()
    assert run.reader.lists == [{"limit": "250", "labelSelector": "x=y"}]
    assert run.reader.watches[0]["labelSelector"] == "x=y"
    assert run.handler.calls[-2:] == [("keep_only", {"a/web", "b/web"}), ("delete", "b/web")]


async def test_list_and_watch_ask_for_their_own_representation_and_time() -> None:
    """A metadata-only list has another media type than the objects of its watch, which replicas end at other times."""
    reader = ScriptedApi([page()], [[]])
    await Run(reader, chance=0.5).to_the_end()
    assert reader.accepted == ["a", "b"]
    assert reader.watches[0]["timeoutSeconds"] == "210"
    assert reader.stalls[0] > WATCH_SECONDS  # silence is a loss once the server itself should have ended it


async def test_missing_items_are_an_empty_list() -> None:
    """Go writes null for a list without items."""
    run = await Run(ScriptedApi([b'{"metadata":{"resourceVersion":"3"},"items":null}'], [[]])).to_the_end()
    assert run.handler.calls == [("keep_only", set())]
    assert run.reader.versions() == ["3"]


async def test_events_reach_the_handler_in_order() -> None:
    """ADDED and MODIFIED are both the object as it is now; bookmarks and unknown types are no object at all."""
    lines = [
        event("ADDED", "x", "11"),
        event("MODIFIED", "x", "12"),
        event("BOOKMARK", version="13"),
        event("NOVELTY", "y", "14"),
        event("DELETED", "x", "15"),
    ]
    run = await Run(ScriptedApi([page()], [lines])).to_the_end()
    assert run.handler.calls == [("keep_only", set()), ("upsert", "x"), ("upsert", "x"), ("delete", "x")]


@pytest.mark.parametrize(
    ("lines", "version"),
    [
        pytest.param([], "10", id="nothing happened"),
        pytest.param([event("ADDED", "x", "11")], "11", id="event"),
        pytest.param([event("ADDED", "x", "11"), event("BOOKMARK", version="20")], "20", id="bookmark"),
        pytest.param([event("ADDED", "x", "11"), event("DELETED", "x", "12")], "12", id="deletion"),
        pytest.param([event("ADDED", "x", "11"), LOST], "11", id="lost connection"),
        pytest.param([event("ADDED", "x", "11"), ClusterRefused("busy", 429)], "11", id="429"),
        pytest.param([event("ADDED", "x", "11"), event("ERROR", code=500, message="etcd")], "11", id="error event"),
        pytest.param([event("ADDED", "x", "11"), b'{"type":"ADDED","obj'], "11", id="half a line"),
        pytest.param([event("ADDED", "x", "11"), b"[]"], "11", id="no event"),
        pytest.param([event("ADDED", "x", "11"), b'{"type":"ADDED","object":{"metadata":7}}'], "11", id="no object"),
        pytest.param([event("ADDED", "odd", "11")], "11", id="object that the handler refused"),
    ],
)
async def test_watch_goes_on_from_the_last_version_seen(lines: list[bytes | ClusterError], version: str) -> None:
    """However a watch ends, the next begins where it ended, without another list."""
    reader = ScriptedApi([page(version="10")], [lines, []])
    await Run(reader, pauses=2).to_the_end()
    assert reader.versions() == ["10", version]
    assert len(reader.lists) == 1


@pytest.mark.parametrize(
    ("first", "ending"),
    [
        pytest.param([event("ADDED", "x", "11"), GONE], "HTTP", id="410 answer"),
        pytest.param([event("ADDED", "x", "11"), EXPIRED], "event", id="410 event"),
    ],
)
async def test_end_of_history_starts_over_with_a_list(first: list[bytes | ClusterError], ending: str) -> None:
    """410 in either form means that events were missed: only a list can say what is gone."""
    reader = ScriptedApi([page("a"), page("b", version="50")], [first, []])
    run = await Run(reader, pauses=2).to_the_end()
    assert reader.versions() == ["10", "50"], ending
    assert run.handler.calls[-2:] == [("upsert", "b"), ("keep_only", {"b"})]


@pytest.mark.parametrize("failure", [GONE, LOST, b"<html>", b'{"items":[{"metadata":[]}]}'], ids=str)
async def test_list_that_breaks_off_begins_anew(failure: bytes | ClusterError) -> None:
    """Half a list removes nothing, and the next one starts without a token."""
    reader = ScriptedApi([page("a", more="T1"), failure, page("a", "b", version="12")], [[]])
    run = await Run(reader, pauses=2).to_the_end()
    assert [query.get("continue") for query in reader.lists] == [None, "T1", None]
    assert [call for call in run.handler.calls if call[0] == "keep_only"] == [("keep_only", {"a", "b"})]
    assert reader.versions() == ["12"]


async def test_version_that_never_works_is_given_up() -> None:
    """A server restored from a backup refuses our version for ever, and not always with 410."""
    refusals: list[list[bytes | ClusterError]] = [[ClusterRefused("too large resource version", 504)]] * 5
    reader = ScriptedApi([page(version="900"), page(version="7")], [*refusals, []])
    await Run(reader, pauses=6).to_the_end()
    assert reader.versions() == ["900"] * 5 + ["7"]


async def test_version_that_is_never_reached_is_given_up() -> None:
    """Nor does a restored server refuse each: it may keep watches open, say nothing, and end them in order."""
    reader = ScriptedApi([page("a", version="900"), page("b", version="7")], [[], []])
    run = Run(reader, pauses=2)
    reader.while_watching = lambda: run.clock.advance(WATCH_SECONDS)
    await run.to_the_end()
    assert reader.versions() == ["900", "7"]
    assert run.handler.calls[-1] == ("keep_only", {"b"})


async def test_watches_that_end_at_once_without_a_word_are_given_up() -> None:
    """As behind a proxy that cuts them: the list shows what has changed meanwhile."""
    reader = ScriptedApi([page(version="900"), page(version="7")], [[]] * 6)
    await Run(reader, pauses=6).to_the_end()
    assert reader.versions() == ["900"] * 5 + ["7"]


async def test_watch_with_bookmarks_alone_is_not_listed_again() -> None:
    """A bookmark proves that the version is reached, however long nothing changes."""
    reader = ScriptedApi([page(version="900")], [[event("BOOKMARK", version="901")], []])
    run = Run(reader, pauses=2)
    reader.while_watching = lambda: run.clock.advance(WATCH_SECONDS)
    await run.to_the_end()
    assert reader.versions() == ["900", "901"]


async def test_odd_object_is_passed_over_and_said_so() -> None:
    """One object that cannot be understood must not hide all others, in a list or in a watch."""
    reader = ScriptedApi([page("odd", "a")], [[event("ADDED", "odd", "11"), event("ADDED", "b", "12")]])
    with capture_logs() as logs:
        run = await Run(reader).to_the_end()
    assert run.handler.calls == [("upsert", "a"), ("keep_only", {"odd", "a"}), ("upsert", "b")]
    assert [(entry["resource"], entry["name"]) for entry in logs if entry["event"] == "watch.object_skipped"] == [
        ("namespaces", "odd")
    ] * 2


@pytest.mark.parametrize(("chance", "factor"), [(0.0, 0.5), (1.0, 1.0)], ids=["least", "most"])
async def test_pauses_double_up_to_half_a_minute(chance: float, factor: float) -> None:
    """From failure to failure we come back half as often, with up to half of the pause left to chance."""
    run = await Run(ScriptedApi([]), pauses=8, chance=chance).to_the_end()
    assert run.delays == [factor * seconds for seconds in (1, 2, 4, 8, 16, 30, 30, 30)]


async def test_line_of_a_watch_ends_the_backoff() -> None:
    """A server that talks is healthy again: the pause is back at its shortest, and never zero."""
    reader = ScriptedApi([LOST, LOST, LOST, page()], [[event("BOOKMARK", version="11"), LOST], []])
    run = await Run(reader, pauses=5).to_the_end()
    assert run.delays == [0.5, 1.0, 2.0, 0.25, 0.5]


@pytest.mark.parametrize("gone", [GONE, EXPIRED], ids=["HTTP", "event"])
@pytest.mark.parametrize(("chance", "factor"), [(0.0, 0.5), (1.0, 1.0)], ids=["least", "most"])
async def test_expired_version_ends_the_backoff_of_the_outage_before(
    gone: bytes | ClusterError, chance: float, factor: float
) -> None:
    """A 410 is an answer: the list starts within the first delay, and replicas still spread theirs."""
    reader = ScriptedApi([page(), page(version="50")], [[LOST], [LOST], [LOST], [gone], []])
    run = await Run(reader, pauses=5, chance=chance).to_the_end()
    assert run.delays == [factor * seconds for seconds in (1, 2, 4, 1, 2)]
    assert len(reader.lists) == 2


async def test_list_alone_does_not_end_the_backoff() -> None:
    """Lists that work beside watches that are always gone would be an expensive loop."""
    reader = ScriptedApi([page()] * 4, [[EXPIRED]] * 4)
    run = await Run(reader, pauses=4).to_the_end()
    assert len(reader.lists) == 4
    assert run.delays == [0.5, 1.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("retry_after_seconds", "delay"),
    [(None, 0.5), (0.0, 0.5), (7.0, 7.0), (3600.0, 30.0)],
    ids=["none", "at once", "longer than ours", "beyond our longest"],
)
async def test_retry_after_is_honoured(retry_after_seconds: float | None, delay: float) -> None:
    """A throttling server's Retry-After lengthens the pause, within reason."""
    reader = ScriptedApi([ClusterRefused("busy", 429, retry_after_seconds)])
    assert (await Run(reader).to_the_end()).delays == [delay]


async def test_age_counts_from_the_last_proof() -> None:
    """List, event and bookmark prove that the view is current; trying to reconnect proves nothing."""
    reader = ScriptedApi([LOST, LOST, page()], [[event("BOOKMARK", version="11"), LOST]])
    run = Run(reader, pauses=3)
    assert run.watch.age_seconds() == 0.0
    run.clock.advance(2)
    assert run.watch.age_seconds() == 2.0  # a server that was never reached shows as a growing age
    await run.to_the_end()
    assert run.delays == [0.5, 1.0, 0.25]
    assert run.watch.age_seconds() == 0.25
    run.clock.advance(100)
    assert REGISTRY.get_sample_value("multiarch_watch_age_seconds", {"resource": "namespaces"}) == 100.25


async def test_loss_and_recovery_are_logged_once_each() -> None:
    """Start, loss, resumption and a new list are state changes, each one line."""
    reader = ScriptedApi(
        [page("a"), page("b", version="30")],
        [[event("BOOKMARK", version="11"), LOST], [event("BOOKMARK", version="12"), EXPIRED], []],
    )
    with capture_logs() as logs:
        await Run(reader, pauses=3).to_the_end()
    assert [entry["event"] for entry in logs] == [
        "watch.started",
        "watch.lost",
        "watch.resumed",
        "watch.lost",
        "watch.relisted",
    ]
    assert logs[1] == {
        "event": "watch.lost",
        "log_level": "warning",
        "resource": "namespaces",
        "error": "connection reset",
        "retry_in_seconds": 0.25,
    }


FORBIDDEN = ClusterRefused("/api/v1/namespaces: HTTP 403 namespaces is forbidden", 403)


TAKEN = event("ERROR", code=403, message="not any more")


async def test_missing_right_is_named_once() -> None:
    """Each of the two, however the server tells of it; another failure meanwhile is said."""
    reader = ScriptedApi(
        [FORBIDDEN, page("a")],
        [[FORBIDDEN], [LOST], [FORBIDDEN], [event("BOOKMARK", version="11")], [TAKEN]],
    )
    with capture_logs() as logs:
        await Run(reader, pauses=6).to_the_end()
    refused = [(entry["right"], entry["log_level"]) for entry in logs if entry["event"] == "watch.refused"]
    assert refused == [("list namespaces", "error"), ("watch namespaces", "error"), ("watch namespaces", "error")]
    assert "is forbidden" in logs[0]["error"]
    assert [entry["event"] for entry in logs] == [
        "watch.refused",
        "watch.started",
        "watch.refused",
        "watch.lost",
        "watch.resumed",
        "watch.refused",
    ]


@pytest.mark.parametrize(
    ("resource", "granted_as"),
    [
        (NODES, "nodes"),
        (PENDING_PODS, "pods"),
        (GATED_PODS, "pods"),
        (Resource(name="jobs", path="/apis/batch/v1/jobs"), "jobs.batch"),
    ],
)
def test_right_is_named_as_roles_have_it(resource: Resource, granted_as: str) -> None:
    assert resource.granted_as == granted_as


async def test_run_that_was_ended_goes_on_where_it_was() -> None:
    """Cancelled and run again, a watch continues from its version."""
    run = await Run(ScriptedApi([page()], [[event("ADDED", "x", "11")], []])).to_the_end()
    run.pauses = 2
    await run.to_the_end()
    assert run.reader.versions() == ["10", "11"]
    assert len(run.reader.lists) == 1
