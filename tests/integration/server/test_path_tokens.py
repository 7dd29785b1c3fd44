"""Tokens in paths: which files are taken, who is let in, and that no answer, log or metric shows a token."""

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import structlog
from aiohttp import web
from prometheus_client import generate_latest

from extender.errors import ConfigError
from extender.metrics import REGISTRY
from extender.server.listener import Listener, open_listener
from extender.server.path_tokens import FEWEST_CHARACTERS, RELOADS, PathTokens
from extender.server.routes import TOKENS, Reply, Route, TokenRoutes, route_server

# As `secrets.token_hex` and `secrets.token_urlsafe` make them, and the same in every process that collects the tests.
OLD = hashlib.sha256(b"old").hexdigest()
NEW = base64.urlsafe_b64encode(hashlib.sha256(b"new").digest()).decode().rstrip("=")
PADDED = f"{'a' * 42}=="


class Recorder:
    """Answers requests and counts them; the first `waits` of them take waiting."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.waits = 0

    async def answer(self, body: bytes) -> Reply:
        """An answer."""
        self.bodies.append(body)
        return Reply(b'"behind the token"')

    def answer_nowait(self, body: bytes) -> Reply | None:
        """The same answer, once nothing has to wait."""
        if self.waits:
            self.waits -= 1
            return None
        self.bodies.append(body)
        return Reply(b'"behind the token"')


async def in_front(_body: bytes) -> Reply:
    """What anyone gets."""
    return Reply(b'"in front"')


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with one token."""
    path = tmp_path / "tokens"
    path.write_text(f"{OLD}\n")
    return path


@pytest.fixture
def tokens(file: Path) -> PathTokens:
    """The file's tokens."""
    return PathTokens("admission.path_token_file", str(file))


@pytest.fixture
def recorder() -> Recorder:
    """What is requested behind the token."""
    return Recorder()


@pytest.fixture
async def listener(tokens: PathTokens, recorder: Recorder) -> AsyncIterator[Listener]:
    """`/pods` for all and `/pods/<token>` for whom the tokens let in."""
    server = route_server(
        {"/pods": Route("admission", in_front, lambda _body, _id: b"")},
        body_limit_bytes=100,
        draining=bool,
        token_routes=TokenRoutes(
            {"/pods": Route("admission", recorder.answer, lambda _body, _id: b"", recorder.answer_nowait)},
            tokens.accepts,
        ),
    )
    opened = await open_listener("admission", web.ServerRunner(server, shutdown_timeout=1), "127.0.0.1", 0)
    yield opened
    await opened.close()


async def call(listener: Listener, path: str, method: str = "POST") -> tuple[int, str]:
    """Status and text of one request."""
    url = f"http://{listener.address}{path}"
    async with aiohttp.ClientSession() as session, session.request(method, url, data=b"x") as response:
        return response.status, await response.text()


@pytest.mark.parametrize("token", [OLD, NEW, PADDED, "-" * FEWEST_CHARACTERS])
@pytest.mark.parametrize("text", ["{}", "{}\n", "\n  {}\t\r\n\n"])
def test_a_line_is_a_token(file: Path, token: str, text: str) -> None:
    """Whatever white space is around it; no part and no prolongation of a token is one."""
    file.write_text(text.format(token))
    tokens = PathTokens("admission.path_token_file", str(file))
    assert tokens.accepts(token)
    for other in ("", token[:-1], f"{token}=", f"{token} ", token.swapcase() + "x", "\udcff", "é" * 40):
        assert not tokens.accepts(other)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("", "has no token", id="empty"),
        pytest.param(" \n\n", "has no token", id="blank"),
        pytest.param(f"{OLD}\n\n{NEW[:31]}\n", "line 3: the token has 31 characters; give 32 or more", id="short"),
        pytest.param(f"{OLD}\n{NEW}/", "line 2: the token has a character that is not of URL-safe", id="slash"),
        pytest.param(f"{OLD} {NEW}", "line 1: the token has a character that is not of URL-safe", id="two in a line"),
        pytest.param(f"# {OLD}", "line 1: the token has a character that is not of URL-safe", id="comment"),
        pytest.param(f"{NEW}=a", "line 1: the token has a character that is not of URL-safe", id="padding inside"),
        pytest.param(f"{NEW}é", "line 1: the token has a character that is not of URL-safe", id="not ASCII"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_line_and_without_the_token(
    file: Path, text: str, says: str
) -> None:
    """At start it is a configuration error."""
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        PathTokens("admission.path_token_file", str(file))
    message = str(refused.value)
    assert message.startswith(f"admission.path_token_file: {file}")
    assert says in message
    assert not any(secret[:8] in message for secret in (OLD, NEW))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """As any other file of the configuration."""
    with pytest.raises(ConfigError, match=r"admission\.path_token_file: .*/gone: No such file"):
        PathTokens("admission.path_token_file", str(tmp_path / "gone"))


def test_tokens_rotate_by_being_accepted_side_by_side(tokens: PathTokens, file: Path) -> None:
    """Add the new one, tell it to the caller, take the old one away."""
    loaded = RELOADS["loaded"].value
    assert not tokens.files.reload_if_changed()
    file.write_text(f"{OLD}\n{NEW}\n")
    assert (tokens.accepts(OLD), tokens.accepts(NEW)) == (True, False)
    assert tokens.files.reload_if_changed()
    assert (tokens.accepts(OLD), tokens.accepts(NEW)) == (True, True)
    file.write_text(f"{NEW}\n")
    assert tokens.files.reload_if_changed()
    assert (tokens.accepts(OLD), tokens.accepts(NEW)) == (False, True)
    assert RELOADS["loaded"].value == loaded + 2


@pytest.mark.parametrize("text", ["", "short\n", f"{NEW}\nwith/slash{'x' * 40}\n", None])
def test_a_file_that_breaks_keeps_the_old_tokens(tokens: PathTokens, file: Path, text: str | None) -> None:
    """All of them and no new one; it is said and counted, and a good file is used again."""
    refused = RELOADS["refused"].value
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    with structlog.testing.capture_logs() as logs:
        assert not tokens.files.reload_if_changed()
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("tokens.refused", "warning")]
    assert str(file) in logs[0]["why"]
    assert RELOADS["refused"].value == refused + 1
    assert (tokens.accepts(OLD), tokens.accepts(NEW)) == (True, False)
    file.write_text(f"{NEW}\n")
    assert tokens.files.reload_if_changed()
    assert tokens.accepts(NEW)


async def test_the_file_is_read_again_while_the_service_runs(tokens: PathTokens, file: Path) -> None:
    """A watch sees the change."""
    watch = asyncio.create_task(tokens.files.watch(0.001))
    file.write_text(NEW)
    async with asyncio.timeout(10):
        while not tokens.accepts(NEW):
            await asyncio.sleep(0.001)
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)


@pytest.mark.parametrize("waits", [0, 1], ids=["at once", "after waiting"])
@pytest.mark.parametrize("query", ["", "?timeout=3s"])
async def test_a_valid_token_is_let_in(listener: Listener, recorder: Recorder, waits: int, query: str) -> None:
    """And counted once, whether or not the answer takes waiting."""
    recorder.waits = waits
    accepted, refused = TOKENS["accepted"].value, TOKENS["refused"].value
    assert await call(listener, f"/pods/{OLD}{query}") == (200, '"behind the token"')
    assert recorder.bodies == [b"x"]
    assert (TOKENS["accepted"].value, TOKENS["refused"].value) == (accepted + 1, refused)


@pytest.mark.parametrize("token", [NEW, OLD[:-1], OLD.upper(), "", "short", "%ff", "x" * 5000])
async def test_any_other_token_is_refused(listener: Listener, recorder: Recorder, token: str) -> None:
    """With 404, before anything is looked up, and counted; the answer does not quote it."""
    accepted, refused = TOKENS["accepted"].value, TOKENS["refused"].value
    status, text = await call(listener, f"/pods/{token}")
    assert status == 404
    assert not token or token not in text
    assert recorder.bodies == []
    assert (TOKENS["accepted"].value, TOKENS["refused"].value) == (accepted, refused + 1)


async def test_the_path_without_a_token_is_not_behind_it(listener: Listener, recorder: Recorder) -> None:
    """It has an answer of its own, and no token is counted."""
    before = [child.value for child in TOKENS.values()]
    assert await call(listener, "/pods") == (200, '"in front"')
    assert (await call(listener, "/other"))[0] == 404
    assert recorder.bodies == []
    assert [child.value for child in TOKENS.values()] == before


async def test_no_answer_log_or_metric_shows_a_token(
    listener: Listener, tokens: PathTokens, file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever is done with it."""
    structlog.reset_defaults()
    texts = [
        (await call(listener, path, method))[1]
        for path in (f"/pods/{OLD}", f"/pods/{OLD}/", f"/{OLD}", f"/pods/x/{OLD}", f"/pods?{OLD}")
        for method in ("POST", "GET")
    ]
    file.write_text(f"{OLD}\n{NEW}")
    assert tokens.files.reload_if_changed()
    file.write_text(f"{OLD}/")
    assert not tokens.files.reload_if_changed()
    captured = capfd.readouterr()
    assert "tokens.reloaded" in captured.out + captured.err
    texts += [
        captured.out,
        captured.err,
        generate_latest(REGISTRY).decode(),
        repr(vars(tokens)),
        repr(vars(tokens.files)),
    ]
    assert not any(secret in text for secret in (OLD, NEW) for text in texts)
