"""Debian's Chromium without a window, driven through its DevTools protocol; and axe-core, which checks accessibility.

Chromium must be installed (`apt-get install chromium`). axe-core is fetched with npm into the cache folder once.
"""

import asyncio
import base64
import itertools
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from testbed.debian_package import ProgramMissing
from testbed.npm_package import NpmFile, find_npm_file

AXE = NpmFile(
    "axe-core",
    "4.10.3",
    "Xm7bpRXnDSX2YE2YFfBk2FnF0ep6tmG7xPh8iHee8MIcrgq762Nkce856dYtJYLkuIoYZvGfTs/PbZhideTcEg==",
    "package/axe.min.js",
)
_START_SECONDS = 60.0
_ANSWER_SECONDS = 60.0
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
)  # fmt: skip


class Page:
    """One page of a browser. `requests` has the URL of every request that it has made."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.requests: list[str] = []
        self.problems: list[str] = []

    async def ask(self, method: str, **parameters: object) -> dict[str, Any]:
        """The result of a method of the protocol."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(_ANSWER_SECONDS):
            while True:
                message = await self._socket.receive_json()
                self._note(message)
                if message.get("id") == number:
                    if "error" in message:
                        raise RuntimeError(f"{method}: {message['error']}")
                    result: dict[str, Any] = message["result"]
                    return result

    async def open(self, path: Path) -> None:
        """Loads a file, and returns when the page and its script are done."""
        for domain in ("Page", "Network", "Runtime", "Log"):
            await self.ask(f"{domain}.enable")
        await self.ask("Page.navigate", url=path.as_uri())
        await self.evaluate(
            "new Promise(done => document.readyState === 'complete' ? done() : addEventListener('load', () => done()))"
        )

    async def evaluate(self, expression: str) -> Any:  # noqa: ANN401 - what a page's script gives
        """The value of an expression in the page; a promise is awaited."""
        answer = await self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression[:80]}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    async def show(self, width: int, height: int, scheme: str) -> None:
        """Sets the size of the window, and the colour scheme that the reader prefers: light or dark."""
        await self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        await self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    async def screenshot(self, path: Path) -> None:
        """Writes what the window shows as PNG."""
        answer = await self.ask("Page.captureScreenshot", format="png")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    async def press(self, key: str, code: str, number: int, text: str = "") -> None:
        """Presses a key, as a reader without a mouse does."""
        common: Mapping[str, object] = {"key": key, "code": code, "windowsVirtualKeyCode": number}
        down = {"text": text} if text else {}
        await self.ask("Input.dispatchKeyEvent", type="keyDown", **common, **down)
        await self.ask("Input.dispatchKeyEvent", type="keyUp", **common)

    def _note(self, message: Mapping[str, Any]) -> None:
        parameters = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case "Runtime.exceptionThrown":
                self.problems.append(str(parameters["exceptionDetails"]))
            case "Log.entryAdded":
                self.problems.append(parameters["entry"]["text"])


def find_chromium() -> str:
    """The program. Raises ProgramMissing."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    raise ProgramMissing("chromium is not installed: apt-get install chromium")


@asynccontextmanager
async def open_page(program: str) -> AsyncIterator[Page]:
    """A page of a browser that ends with the context."""
    with tempfile.TemporaryDirectory() as folder:
        process = await asyncio.create_subprocess_exec(
            program, *_FLAGS, f"--user-data-dir={folder}", "about:blank",
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            port = await _port(Path(folder) / "DevToolsActivePort", process)
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as response:
                    pages = [each for each in await response.json() if each["type"] == "page"]
                async with session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=1 << 28) as socket:
                    yield Page(socket)
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()
            await asyncio.sleep(0.2)  # its children still write into the folder


async def _port(file: Path, process: asyncio.subprocess.Process) -> int:
    async with asyncio.timeout(_START_SECONDS):
        while not (file.is_file() and (lines := file.read_text().splitlines())):
            if process.returncode is not None:
                raise RuntimeError(f"chromium has ended with {process.returncode}")
            await asyncio.sleep(0.05)
    return int(lines[0])


def find_axe() -> str:
    """The source of axe-core, from the cache or fetched with npm. Raises ProgramMissing."""
    return find_npm_file(AXE).read_text("utf-8")
