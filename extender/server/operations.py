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

    async def livez(request: web.Request) -> web.Response:
        return _report(request, live)

    async def readyz(request: web.Request) -> web.Response:
        return _report(request, ready)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/livez", livez)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    return app


def _report(request: web.Request, checks: Mapping[str, Check]) -> web.Response:
    found = {name: check() for name, check in checks.items()}
    failed = not all(health.ok for health in found.values())
    summary = f"{request.path.strip('/')} check {'failed' if failed else 'passed'}"
    lines = [*(_line(name, health) for name, health in found.items()), summary]
    shown = lines if failed or "verbose" in request.query else ["ok"]
    return web.Response(text="\n".join(shown) + "\n", status=503 if failed else 200)


def _line(name: str, health: CheckResult) -> str:
    return f"[{'+' if health.ok else '-'}]{name} {'ok' if health.ok else 'failed'}: {health.detail}".removesuffix(": ")
