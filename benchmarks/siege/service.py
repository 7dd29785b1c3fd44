"""The service of a siege, watched from outside: its memory and that of its children, its loop, its deaths.

`multiarch-extender serve` runs on one core with its children, under a memory limit. Its event loop is held for as long
as `/livez` is not answered, without the time for which the process waited for the core.
"""

import contextlib
import http.client
import os
import re
import signal
import subprocess
import threading
import time
import urllib.request
from pathlib import Path
from typing import Self

from benchmarks.cores import pinned
from benchmarks.process_costs import children, memory, waited_seconds
from benchmarks.siege.network import OPERATIONS_PORT
from testbed.child import ServerFailed

READY_SECONDS, TIMEOUT_SECONDS = 60.0, 10.0
PROBE_SECONDS, WEIGH_SECONDS = 0.01, 0.1
_FETCHER = b"extender.fetcher"
_ENDS = re.compile(r"^multiarch_fetcher_ends_total\{.*\} (\S+)$", re.MULTILINE)


class BesiegedService(threading.Thread):
    """Runs the service while the context is open, and again when it ends, as a kubelet does.

    From `forget` on it notes the most megabytes (of the service, and of both), the longest time without an answer, and
    the deaths.
    """

    def __init__(self, command: list[str], log: Path, core: int) -> None:
        super().__init__(daemon=True)
        self._command, self._log, self._core = command, log, core
        self._connection = http.client.HTTPConnection("127.0.0.1", OPERATIONS_PORT, timeout=TIMEOUT_SECONDS)
        self._ended = threading.Event()
        self.forget()

    def forget(self) -> None:
        """Starts anew with what is noted."""
        self.megabytes = self.both_megabytes = self.hold_seconds = 0.0
        self.deaths = 0

    def __enter__(self) -> Self:
        """Starts the service and returns when it is ready. Raises ServerFailed."""
        self._process = self._run()
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            if self._ask("/readyz") == 200:
                self.start()
                return self
            time.sleep(WEIGH_SECONDS)
        self._process.kill()
        raise ServerFailed(f"the service is not ready:\n{self._log.read_text()[-2000:]}")

    def __exit__(self, *_: object) -> None:
        """Ends it; a drain may take as long as its grace period, so it is killed."""
        self._ended.set()
        self.join()
        self._process.kill()
        self._process.wait()
        self._connection.close()

    def run(self) -> None:
        """Looks at the service until the end."""
        weighed = 0.0
        while not self._ended.wait(PROBE_SECONDS):
            if self._process.poll() is not None:
                self.deaths += 1
                self._process = self._run()
            with contextlib.suppress(OSError, KeyError):  # it is ending
                self._probe()
                if time.monotonic() - weighed >= WEIGH_SECONDS:
                    weighed = time.monotonic()
                    self._weigh()

    @property
    def pid(self) -> int:
        """The id of the current process."""
        return self._process.pid

    def kill_fetchers(self) -> int:
        """Kills the fetchers among its children, and returns how many they were."""
        killed = 0
        for child in children(self._process.pid):
            with contextlib.suppress(OSError):
                if _FETCHER in Path(f"/proc/{child}/cmdline").read_bytes():
                    os.kill(child, signal.SIGKILL)
                    killed += 1
        return killed

    def fetcher_ends(self) -> int:
        """Returns how many fetchers of the current process have ended."""
        with urllib.request.urlopen(f"http://127.0.0.1:{OPERATIONS_PORT}/metrics", timeout=TIMEOUT_SECONDS) as answer:
            return sum(int(float(number)) for number in _ENDS.findall(answer.read().decode()))

    def _run(self) -> "subprocess.Popen[bytes]":
        with pinned(self._core), self._log.open("ab") as log:
            return subprocess.Popen(self._command, stderr=log, stdout=log)

    def _ask(self, path: str) -> int:
        """Returns the status; 0 if there is no answer."""
        try:
            self._connection.request("GET", path)
            answer = self._connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            return 0
        return answer.status

    def _probe(self) -> None:
        pid = self._process.pid
        began, waited = time.monotonic(), waited_seconds(pid)
        status = self._ask("/livez")
        took = time.monotonic() - began
        if status or took >= TIMEOUT_SECONDS:
            self.hold_seconds = max(self.hold_seconds, took - (waited_seconds(pid) - waited))

    def _weigh(self) -> None:
        own = memory(self._process.pid).now_megabytes
        self.megabytes = max(self.megabytes, own)
        with contextlib.suppress(OSError, KeyError):  # a child has ended
            both = own + sum(memory(child).now_megabytes for child in children(self._process.pid))
            self.both_megabytes = max(self.both_megabytes, both)
