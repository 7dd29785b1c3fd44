"""Runs Debian's redis-server (7.0) as a process, fetched into the cache folder if missing."""

import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from testbed.debian_package import find_package
from testbed.processes import free_port

_LIBRARIES = ("liblzf1", "libjemalloc2", "liblua5.1-0", "lua-cjson", "lua-bitop", "libatomic1", "libsystemd0")
_END_SECONDS = 10


def find_redis_server() -> Path:
    """Returns the path of the redis-server program.

    Raises:
        ProgramMissing: it is missing and cannot be fetched.
    """
    return find_package("redis-server", "redis-tools", *_LIBRARIES) / "usr" / "bin" / "redis-server"


class DebianRedis:
    """`with DebianRedis(program, folder, options) as redis:` runs a server on 127.0.0.1 at `redis.port` until the end.

    It keeps nothing on disk. With `tls` its port speaks TLS only, and `options` name the certificates.
    """

    def __init__(self, program: Path, folder: Path, options: Sequence[str] = (), *, tls: bool = False) -> None:
        self.port = free_port()
        ports = ("--port", "0", "--tls-port", str(self.port)) if tls else ("--port", str(self.port))
        quiet = ("--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(folder))
        self._command = [str(program), *ports, *quiet, *options]
        self._libraries = ":".join(sorted({str(path.parent) for path in program.parents[2].glob("usr/lib/**/*.so*")}))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Starts the server, empty, and returns when it accepts connections; may be called again after `kill`."""
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, env=os.environ | {"LD_LIBRARY_PATH": self._libraries}
        )
        assert self._process.stdout is not None
        said = []
        for line in self._process.stdout:
            said.append(line)
            if b"Ready to accept connections" in line:
                break
        else:
            self.kill()
            raise AssertionError(f"redis-server did not start: {b''.join(said).decode()}")
        # Unless the pipe is read, it fills up and blocks the process that writes to it.
        self._reader = threading.Thread(target=deque, args=(self._process.stdout, 0), daemon=True)
        self._reader.start()

    def pause(self) -> None:
        """Stops the process (SIGSTOP): the kernel still accepts connections, and nothing is answered."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continues the process (SIGCONT), which then answers everything sent meanwhile."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kills the server (SIGKILL) and waits for its end; fine if it has ended already."""
        self._process.kill()
        self._process.wait(_END_SECONDS)
        if hasattr(self, "_reader"):
            self._reader.join()
        if self._process.stdout:
            self._process.stdout.close()
