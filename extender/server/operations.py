"""The operations endpoints: /livez and /readyz from named checks, and /metrics."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from extender.metrics import REGISTRY
from extender.server.routes import Post


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check; `detail` is printed beside the check's name."""

    ok: bool = True
    detail: str = ""


Check = Callable[[], CheckResult]

# A rendering takes 3 to 6 ms of the event loop, and whoever reaches the port can ask for one: 300 a second would leave
# no time for reviews. Ten take a twentieth of it. So many at once are made after a time of quiet.
_RENDERED_PER_SECOND, _RENDERED_AT_ONCE = 10.0, 20.0


class MetricsText:
    """The metrics as text, rendered ten times a second at most; other calls get the last text again."""

    def __init__(self, render: Callable[[], bytes], clock: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds."""
        self._render = render
        self._clock = clock
        self._left, self._left_at = _RENDERED_AT_ONCE, clock()
        self._text = b""

    def read(self) -> bytes:
        """The text, a tenth of a second old at most."""
        now = self._clock()
        self._left = min(_RENDERED_AT_ONCE, self._left + (now - self._left_at) * _RENDERED_PER_SECOND)
        self._left_at = now
        if self._left >= 1:
            self._left -= 1
            self._text = self._render()
        return self._text


class Operations:
    """A service of the three endpoints. `?verbose` or a failed check shows each check on a line of its own.

    `/readyz` shows the `informative` checks and does not go by them: a replica is ready though they fail.
    """

    posts: Mapping[str, Post] = MappingProxyType({})

    def __init__(
        self,
        live: Mapping[str, Check],
        ready: Mapping[str, Check],
        informative: Mapping[str, Check] = MappingProxyType({}),
        *,
        clock: Callable[[], float],
    ) -> None:
        self._checks = {"/livez": (live, {}), "/readyz": (ready, informative)}
        self._text = MetricsText(lambda: generate_latest(REGISTRY), clock)

    def is_draining(self) -> bool:
        """False: probes and Prometheus may ask to the end."""
        return False

    async def respond(self, request: web.BaseRequest, _body: bytes) -> web.Response:
        """As `Responder` has it."""
        if request.path != "/metrics" and request.path not in self._checks:
            return web.Response(status=404, text="404: Not Found")
        if request.method not in {"GET", "HEAD"}:
            return web.Response(status=405, text="405: Method Not Allowed", headers={"Allow": "GET,HEAD"})
        if request.path == "/metrics":
            return web.Response(body=self._text.read(), headers={"Content-Type": CONTENT_TYPE_LATEST})
        return _report(request, *self._checks[request.path])


def _report(request: web.BaseRequest, checks: Mapping[str, Check], informative: Mapping[str, Check]) -> web.Response:
    found = {name: check() for name, check in checks.items()}
    failed = not all(health.ok for health in found.values())
    summary = f"{request.path.strip('/')} check {'failed' if failed else 'passed'}"
    shown_too = {name: check() for name, check in informative.items()}
    lines = [*(_line(name, health) for name, health in (found | shown_too).items()), summary]
    shown = lines if failed or "verbose" in request.query else ["ok"]
    return web.Response(text="\n".join(shown) + "\n", status=503 if failed else 200)


def _line(name: str, health: CheckResult) -> str:
    return f"[{'+' if health.ok else '-'}]{name} {'ok' if health.ok else 'failed'}: {health.detail}".removesuffix(": ")
