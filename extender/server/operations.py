"""The operations endpoints: /livez and /readyz from named checks, and /metrics."""

from collections.abc import Callable, Mapping

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from extender.metrics import REGISTRY


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check; `detail` is printed beside the check's name."""

    ok: bool = True
    detail: str = ""


Check = Callable[[], CheckResult]


def operations_app(live: Mapping[str, Check], ready: Mapping[str, Check]) -> web.Application:
    """An application with the three endpoints. `?verbose` or a failed check shows each check on a line of its own."""
    app = health_app(live, ready)
    app.router.add_get("/metrics", _metrics)
    return app


def metrics_app() -> web.Application:
    """An application with /metrics alone."""
    app = web.Application()
    app.router.add_get("/metrics", _metrics)
    return app


def health_app(live: Mapping[str, Check], ready: Mapping[str, Check]) -> web.Application:
    """An application with /livez and /readyz, as `operations_app` has them."""

    async def livez(request: web.Request) -> web.Response:
        return _report(request, live)

    async def readyz(request: web.Request) -> web.Response:
        return _report(request, ready)

    app = web.Application()
    app.router.add_get("/livez", livez)
    app.router.add_get("/readyz", readyz)
    return app


async def _metrics(_: web.Request) -> web.Response:
    return web.Response(body=generate_latest(REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _report(request: web.Request, checks: Mapping[str, Check]) -> web.Response:
    found = {name: check() for name, check in checks.items()}
    failed = not all(health.ok for health in found.values())
    summary = f"{request.path.strip('/')} check {'failed' if failed else 'passed'}"
    lines = [*(_line(name, health) for name, health in found.items()), summary]
    shown = lines if failed or "verbose" in request.query else ["ok"]
    return web.Response(text="\n".join(shown) + "\n", status=503 if failed else 200)


def _line(name: str, health: CheckResult) -> str:
    return f"[{'+' if health.ok else '-'}]{name} {'ok' if health.ok else 'failed'}: {health.detail}".removesuffix(": ")
