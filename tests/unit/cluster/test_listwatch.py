"""List and watch: what is asked of the API server, in which order, and how soon again, under every kind of loss."""

import json
from collections.abc import Set
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from extender.cluster.client import ClusterRefused
from extender.cluster.gated_pods import HELD_PODS
from extender.cluster.listwatch import LOST_SECONDS, WATCH_SECONDS, ListWatch, Resource
from extender.cluster.views import NODES, PENDING_PODS
from extender.errors import ClusterError
from extender.metrics import REGISTRY
from testbed.clock import Clock
from tests.unit.cluster.scripted_api import LOST, Script, ScriptedApi

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


ADDED = event("ADDED", "x", "11")
AGAIN = event("BOOKMARK", version="11")
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

    def __init__(
        self, reader: ScriptedApi, pauses: int = 1, chance: float = 0.0, resource: Resource = NAMESPACES
    ) -> None:
        self.reader = reader
        self.handler = RecordingHandler()
        self.delays: list[float] = []
        self.clock = Clock()
        self.pauses = pauses
        self.watch = ListWatch(
            reader, resource, self.handler, clock=self.clock, random=lambda: chance, sleep=self._sleep
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
    """Every page is asked for with the token of the one before, and the watch begins at the list's version.

    A metadata-only list has another media type than the objects of its watch, which replicas end at other times. Go
    writes null for a list without items.
    """
    last = b'{"metadata":{"resourceVersion":"10"},"items":null}'
    reader = ScriptedApi([page("a", "b", more="T1"), page("c", more="T2"), last], [[]])
    run = await Run(reader, chance=0.5).to_the_end()
    assert reader.lists == [{"limit": "250"}, *({"limit": "250", "continue": token} for token in ("T1", "T2"))]
    assert reader.watches == [
        {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": "10", "timeoutSeconds": "210"}
    ]
    assert run.handler.calls == [*(("upsert", name) for name in "abc"), ("keep_only", {"a", "b", "c"})]
    assert reader.accepted == ["a", "a", "a", "b"]
    assert reader.stalls == [LOST_SECONDS]


async def test_selection_goes_with_list_and_watch_and_keys_have_the_namespace() -> None:
    """Objects of two namespaces may share a name."""
    items = [{"metadata": {"name": "web", "namespace": where, "resourceVersion": "5"}} for where in ("a", "b")]
    body = json.dumps({"metadata": {"resourceVersion": "10"}, "items": items}).encode()
    gone = json.dumps({"type": "DELETED", "object": items[1]}).encode()
    selected = Resource(name="namespaces", path=NAMESPACES.path, query={"labelSelector": "x=y"})
    run = await Run(ScriptedApi([body], [[gone]]), resource=selected).to_the_end()
    assert run.reader.lists == [{"limit": "250", "labelSelector": "x=y"}]
    assert run.reader.watches[0]["labelSelector"] == "x=y"
    assert run.handler.calls[-2:] == [("keep_only", {"a/web", "b/web"}), ("delete", "b/web")]


async def test_events_reach_the_handler_in_order() -> None:
    """ADDED and MODIFIED are both the object as it is now; bookmarks and unknown types are no object at all."""
    lines = [ADDED, event("MODIFIED", "x", "12"), event("BOOKMARK", version="13"), event("NOVELTY", "y", "14")]
    lines += [event("DELETED", "x", "15")]
    run = await Run(ScriptedApi([page()], [lines])).to_the_end()
    assert run.handler.calls == [("keep_only", set()), ("upsert", "x"), ("upsert", "x"), ("delete", "x")]


@pytest.mark.parametrize(
    ("lines", "version"),
    [
        pytest.param([], "10", id="nothing happened"),
        pytest.param([ADDED], "11", id="event"),
        pytest.param([ADDED, event("BOOKMARK", version="20")], "20", id="bookmark"),
        pytest.param([ADDED, event("DELETED", "x", "12")], "12", id="deletion"),
        pytest.param([ADDED, LOST], "11", id="lost connection"),
        pytest.param([ADDED, ClusterRefused("busy", 429)], "11", id="429"),
        pytest.param([ADDED, event("ERROR", code=500, message="etcd")], "11", id="error event"),
        pytest.param([ADDED, b'{"type":"ADDED","obj'], "11", id="half a line"),
        pytest.param([ADDED, b"[]"], "11", id="no event"),
        pytest.param([ADDED, b'{"type":"ADDED","object":{"metadata":7}}'], "11", id="no object"),
        pytest.param([event("ADDED", "odd", "11")], "11", id="object that the handler refused"),
    ],
)
async def test_watch_goes_on_from_the_last_version_seen(lines: list[bytes | ClusterError], version: str) -> None:
    """However a watch ends, the next begins where it ended, without another list."""
    reader = ScriptedApi([page(version="10")], [lines, []])
    await Run(reader, pauses=2).to_the_end()
    assert reader.versions() == ["10", version]
    assert len(reader.lists) == 1


@pytest.mark.parametrize("gone", [GONE, EXPIRED], ids=["HTTP", "event"])
async def test_end_of_history_starts_over_with_a_list(gone: bytes | ClusterError) -> None:
    """410 in either form means that events were missed: only a list can say what is gone."""
    reader = ScriptedApi([page("a"), page("b", version="50")], [[ADDED, gone], []])
    run = await Run(reader, pauses=2).to_the_end()
    assert reader.versions() == ["10", "50"]
    assert run.handler.calls[-2:] == [("upsert", "b"), ("keep_only", {"b"})]


@pytest.mark.parametrize("failure", [GONE, LOST, b"<html>", b'{"items":[{"metadata":[]}]}'], ids=str)
async def test_list_that_breaks_off_begins_anew(failure: bytes | ClusterError) -> None:
    """Half a list removes nothing, and the next one starts without a token."""
    reader = ScriptedApi([page("a", more="T1"), failure, page("a", "b", version="12")], [[]])
    run = await Run(reader, pauses=2).to_the_end()
    assert [query.get("continue") for query in reader.lists] == [None, "T1", None]
    assert [call for call in run.handler.calls if call[0] == "keep_only"] == [("keep_only", {"a", "b"})]
    assert reader.versions() == ["12"]


@pytest.mark.parametrize("watch", [[ClusterRefused("too large resource version", 504)], []], ids=["refused", "ended"])
async def test_version_that_never_works_is_given_up(watch: list[bytes | ClusterError]) -> None:
    """A server restored from a backup refuses our version, and not always with 410; a proxy may cut each watch."""
    reader = ScriptedApi([page(version="900"), page(version="7")], [*[watch] * 5, []])
    await Run(reader, pauses=6).to_the_end()
    assert reader.versions() == ["900"] * 5 + ["7"]


@pytest.mark.parametrize(
    ("lines", "version"), [([], "7"), ([event("BOOKMARK", version="901")], "901")], ids=["silence", "a bookmark"]
)
async def test_version_that_is_never_reached_is_given_up(lines: list[bytes], version: str) -> None:
    """A restored server may keep watches open and say nothing; a bookmark proves that the version is reached."""
    reader = ScriptedApi([page("a", version="900"), page("b", version="7")], [lines, []])
    run = Run(reader, pauses=2)
    reader.while_watching = lambda: run.clock.advance(WATCH_SECONDS)
    await run.to_the_end()
    assert reader.versions() == ["900", version]


@pytest.mark.parametrize(("seconds", "lists"), [(20.0, 1), (30.0, 2)])
async def test_a_view_that_a_new_watch_would_confirm_too_late_is_listed_again(seconds: float, lists: int) -> None:
    """Its first bookmark may take a minute; by then the view would count for nothing, though nothing is wrong."""
    reader = ScriptedApi([page(), page(version="30")], [[LOST], []])
    run = Run(reader, pauses=2)
    reader.while_watching = lambda: run.clock.advance(seconds)
    await run.to_the_end()
    assert len(reader.lists) == lists


async def test_view_counts_while_it_was_confirmed_lately() -> None:
    reader = ScriptedApi([page()], [[AGAIN]])
    run = Run(reader)
    assert not run.watch.is_seen
    await run.to_the_end()
    for seconds, is_seen in ((LOST_SECONDS - 1, True), (1, False)):
        run.clock.advance(seconds)
        assert run.watch.is_seen is is_seen


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
@pytest.mark.parametrize(
    ("pages", "watches", "seconds"),
    [
        pytest.param([], [], [1, 2, 4, 8, 16, 30, 30, 30], id="nothing works"),
        pytest.param([LOST, LOST, LOST, page()], [[AGAIN, LOST], []], [1, 2, 4, 0.5, 1], id="a watch that works"),
        pytest.param([page(), page()], [[LOST]] * 3 + [[GONE], []], [1, 2, 4, 1, 2], id="410 after an outage"),
        pytest.param([page(), page()], [[LOST]] * 3 + [[EXPIRED], []], [1, 2, 4, 1, 2], id="its event"),
        pytest.param([page()] * 4, [[EXPIRED]] * 4, [1, 2, 4, 8], id="lists alone"),
    ],
)
async def test_pauses_double_up_to_half_a_minute(
    pages: list[bytes | ClusterError], watches: list[Script], seconds: list[float], chance: float, factor: float
) -> None:
    """With up to half of each left to chance. A server that talks is healthy again, and so is one that says 410 once.

    Lists that work beside watches that are always gone would be an expensive loop.
    """
    run = await Run(ScriptedApi(pages, watches), pauses=len(seconds), chance=chance).to_the_end()
    assert run.delays == [factor * each for each in seconds]


@pytest.mark.parametrize(("retry_after_seconds", "delay"), [(None, 0.5), (0.0, 0.5), (7.0, 7.0), (3600.0, 30.0)])
async def test_retry_after_is_honoured(retry_after_seconds: float | None, delay: float) -> None:
    """A throttling server's Retry-After lengthens the pause, within reason."""
    reader = ScriptedApi([ClusterRefused("busy", 429, retry_after_seconds)])
    assert (await Run(reader).to_the_end()).delays == [delay]


async def test_age_counts_from_the_last_proof() -> None:
    """List, event and bookmark prove that the view is current; trying to reconnect proves nothing."""
    reader = ScriptedApi([LOST, LOST, page()], [[AGAIN, LOST]])
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
        [page("a"), page("b", version="30")], [[AGAIN, LOST], [event("BOOKMARK", version="12"), EXPIRED], []]
    )
    with capture_logs() as logs:
        await Run(reader, pauses=3).to_the_end()
    assert [entry["event"] for entry in logs] == [
        "watch.started", "watch.lost", "watch.resumed", "watch.lost", "watch.relisted",
    ]  # fmt: skip
    assert logs[1] == {
        "event": "watch.lost", "log_level": "warning", "resource": "namespaces", "error": "connection reset",
        "retry_in_seconds": 0.25,
    }  # fmt: skip


FORBIDDEN = ClusterRefused("/api/v1/namespaces: HTTP 403 namespaces is forbidden", 403)
TAKEN = event("ERROR", code=403, message="not any more")


async def test_missing_right_is_named_once() -> None:
    """Each of the two, however the server tells of it; another failure meanwhile is said."""
    reader = ScriptedApi([FORBIDDEN, page("a")], [[FORBIDDEN], [LOST], [FORBIDDEN], [AGAIN], [TAKEN]])
    with capture_logs() as logs:
        await Run(reader, pauses=6).to_the_end()
    refused = [(entry["right"], entry["log_level"]) for entry in logs if entry["event"] == "watch.refused"]
    assert refused == [("list namespaces", "error"), ("watch namespaces", "error"), ("watch namespaces", "error")]
    assert "is forbidden" in logs[0]["error"]
    assert [entry["event"] for entry in logs] == [
        "watch.refused", "watch.started", "watch.refused", "watch.lost", "watch.resumed", "watch.refused",
    ]  # fmt: skip


def test_right_is_named_as_roles_have_it() -> None:
    resources = NODES, PENDING_PODS, HELD_PODS, Resource(name="jobs", path="/apis/batch/v1/jobs")
    assert [each.granted_as for each in resources] == ["nodes", "pods", "pods", "jobs.batch"]


async def test_run_that_was_ended_goes_on_where_it_was() -> None:
    """Cancelled and run again, a watch continues from its version."""
    run = await Run(ScriptedApi([page()], [[event("ADDED", "x", "11")], []])).to_the_end()
    run.pauses = 2
    await run.to_the_end()
    assert run.reader.versions() == ["10", "11"]
    assert len(run.reader.lists) == 1
