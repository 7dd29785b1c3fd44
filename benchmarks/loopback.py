"""A load generator that adds little of its own: prebuilt HTTP requests over one blocking socket.

Every answer's status is checked: a quick 413 looks like a splendid benchmark.
"""

import socket
import statistics
import time

import msgspec


class Measured(msgspec.Struct, frozen=True):
    """Latencies of one kind of request, in milliseconds."""

    samples: int
    p50: float
    p99: float
    answer_bytes: int


def request_bytes(path: str, body: bytes) -> bytes:
    """The request as kube-scheduler writes it."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Connection:
    """One keep-alive connection."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(1 << 20)

    def ask(self, request: bytes) -> bytes:
        """The body of the 200 that answers `request`.

        Raises:
            AssertionError: the status is another one.
        """
        self._socket.sendall(request)
        data = self._socket.recv(1 << 20)
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._socket.recv(1 << 20)
        head = data[:end]
        if not head.startswith(b"HTTP/1.1 200 "):
            raise AssertionError(f"not a 200: {data[:300]!r}")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        parts = [data[end + 4 :]]
        missing = length - len(parts[0])
        while missing > 0:
            received = self._socket.recv_into(self._buffer, min(missing, len(self._buffer)))
            parts.append(bytes(self._buffer[:received]))
            missing -= received
        return b"".join(parts)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def measure(connection: Connection, request: bytes, *, samples: int, warm_up: int) -> Measured:
    """Ask `warm_up` times unmeasured, then `samples` times."""
    answer = b""
    for _ in range(warm_up):
        answer = connection.ask(request)
    milliseconds = []
    for _ in range(samples):
        started = time.perf_counter()
        connection.ask(request)
        milliseconds.append((time.perf_counter() - started) * 1000)
    cuts = statistics.quantiles(milliseconds, n=100)
    return Measured(samples, statistics.median(milliseconds), cuts[98], len(answer))
