"""Runs Debian's redis-server (7.0) as a process, fetched into the cache folder if missing."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from testbed.debian_package import find_package, with_libraries
from testbed.processes import Process, free_port

_LIBRARIES = ("liblzf1", "libjemalloc2", "liblua5.1-0", "lua-cjson", "lua-bitop", "libatomic1", "libsystemd0")
_READY_SECONDS, _END_SECONDS = 30.0, 10.0


def find_redis_server() -> Path:
    """Returns the path of the redis-server program. Raises ProgramMissing."""
    return find_package("redis-server", "redis-tools", *_LIBRARIES) / "usr" / "bin" / "redis-server"


class DebianRedis:
    """`with DebianRedis(program, folder, options) as redis:` runs a server on 127.0.0.1 at `redis.port` until the end.

    It keeps nothing on disk. With `tls` its port speaks TLS only, and `options` name the certificates.
    """

    def __init__(self, program: Path, folder: Path, options: Sequence[str] = (), *, tls: bool = False) -> None:
        self.port = free_port()
        ports = ("--port", "0", "--tls-port", str(self.port)) if tls else ("--port", str(self.port))
        quiet = ("--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(folder))
        self._command = [*with_libraries(program), *ports, *quiet, *options]
        self._log = folder / f"redis-{self.port}.log"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Starts the server, empty, and returns when it accepts connections; may be called again after `kill`."""
        self._process = Process("redis-server", self._command, self._log)
        self._process.wait_until(lambda: b"Ready to accept connections" in self._log.read_bytes(), _READY_SECONDS)

    def pause(self) -> None:
        """Stops the process (SIGSTOP): the kernel still accepts connections, and nothing is answered."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Continues the process (SIGCONT), which then answers everything sent meanwhile."""
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kills the server (SIGKILL) and waits for its end; fine if it has ended already."""
        if self._process.is_running:
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.stop(_END_SECONDS)
