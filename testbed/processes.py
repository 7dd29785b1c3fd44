"""A program of the control plane as a child process: its log file, its readiness, its end within a deadline.

A child gets a session of its own, so that Ctrl-C reaches only this process, which stops the children in their order.
The kernel kills a child when this process ends (parent_death.py), so that no child outlives it.
"""

import contextlib
import http.client
import os
import random
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

PARENT_DEATH = Path(__file__).with_name("parent_death.py")
LOG_TAIL_BYTES = 6000
PAUSE_SECONDS = 0.05


class ProcessFailed(RuntimeError):
    """A program did not come up, or has ended; the message ends with the last lines of its log."""


class Process:
    """A running program whose output goes to `log`. Start it from the main thread (see parent_death.py)."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name, self.log = name, log
        wrapped = [sys.executable, "-I", "-S", str(PARENT_DEATH), str(os.getpid()), *command]
        with log.open("wb") as output:
            self._child = subprocess.Popen(
                wrapped,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._child.pid

    @property
    def is_running(self) -> bool:
        """False once it has ended."""
        return self._child.poll() is None

    @property
    def exit_code(self) -> int | None:
        """That of the process; None while it runs."""
        return self._child.poll()

    def wait_until(self, is_ready: Callable[[], bool], timeout_seconds: float) -> None:
        """Returns when `is_ready` is true. Raises ProcessFailed if the process ends first or the time runs out."""
        deadline = time.monotonic() + timeout_seconds
        while not is_ready():
            if time.monotonic() > deadline:
                raise ProcessFailed(f"{self.name} was not ready in {timeout_seconds:g} s\n{self.tail()}")
            try:
                status = self._child.wait(PAUSE_SECONDS)
            except subprocess.TimeoutExpired:
                continue
            raise ProcessFailed(f"{self.name} ended with status {status}\n{self.tail()}")

    def stop(self, grace_seconds: float) -> None:
        """Ends the process and waits for its end: SIGTERM, then SIGKILL after the grace period. May be called twice."""
        self._child.terminate()
        try:
            self._child.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:  # also after a second Ctrl-C; does nothing to a child that has ended
            self._child.kill()
            self._child.wait()

    def tail(self) -> str:
        """Returns the end of its log, under a heading; a log that was removed is said to be gone."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except FileNotFoundError:
            return f"--- {self.log} is gone ---"
        return f"--- end of {self.log} ---\n{text}"


def free_port() -> int:
    """Returns a free loopback port, which no other call returns while this process runs, in whichever process it is.

    The port is below 32768, where Linux's range for outgoing connections begins. A port found by binding to 0 lies
    within that range, and an outgoing connection may take it before a program that starts slowly binds it.
    """
    while True:
        port = random.randrange(20000, 32768)
        with socket.socket() as candidate, contextlib.suppress(OSError):
            candidate.bind(("127.0.0.1", port))
            _reserve(port)
            return port


def _reserve(port: int) -> None:
    """Binds a name that stands for the port; only Linux has such without a file. Raises OSError if another has it."""
    if sys.platform == "linux":
        name = socket.socket(socket.AF_UNIX)
        try:
            name.bind(f"\0multiarch-extender-port-{port}")
        except OSError:
            name.close()
            raise
        name.detach()  # it is bound for as long as this process runs


def answers(port: int, path: str, tls: ssl.SSLContext | None = None) -> bool:
    """Whether a GET of the path at a loopback port is answered with 200; false as well if nothing listens yet."""
    if tls is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    else:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=tls)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
