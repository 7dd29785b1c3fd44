"""A client with little overhead: prebuilt HTTP requests over one blocking socket.

It supports HTTP/1.1 as far as our servers and Go's use it.
"""

import socket
import ssl
from typing import Self
from urllib.parse import urlsplit


class UnexpectedStatus(RuntimeError):
    """An answer that is not a 200; the message quotes its beginning."""


def request_bytes(path: str, body: bytes) -> bytes:
    """Returns the request as kube-scheduler writes it."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Connection:
    """One keep-alive connection, over TLS if `tls`; any certificate is accepted."""

    def __init__(self, host: str, port: int, *, tls: bool = False) -> None:
        self._socket = socket.create_connection((host, port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            self._socket = context.wrap_socket(self._socket)
        self._buffer = bytearray(1 << 20)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, request: bytes) -> bytes:
        """Sends `request` and returns the body of the answer, which must be a 200.

        Raises:
            UnexpectedStatus: the answer has another status.
            ConnectionError: the server closed the connection.
        """
        self.send(request)
        status, body = self.read()
        if status != 200:
            raise UnexpectedStatus(f"status {status}: {body[:300]!r}")
        return body

    def send(self, request: bytes) -> None:
        """Sends a request, whose answer `read` returns."""
        self._socket.sendall(request)

    def read(self) -> tuple[int, bytes]:
        """Returns the status and the body of the next answer. Raises ConnectionError."""
        data = self._receive()
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._receive()
        head = data[:end].lower()
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        parts = [data[end + 4 :]]
        missing = length - len(parts[0])
        while missing > 0:
            parts.append(self._receive(missing))
            missing -= len(parts[-1])
        return int(head.split(b" ", 2)[1]), b"".join(parts)

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def _receive(self, most_bytes: int = 1 << 20) -> bytes:
        received = self._socket.recv_into(self._buffer, min(most_bytes, len(self._buffer)))
        if not received:
            raise ConnectionError("the server hung up before the end of its answer")
        return bytes(self._buffer[:received])


def connect(url: str) -> Connection:
    """Connects to the server of `url`."""
    parts = urlsplit(url)
    assert parts.hostname
    assert parts.port
    return Connection(parts.hostname, parts.port, tls=parts.scheme == "https")


def ask_once(url: str, body: bytes) -> bytes:
    """POSTs `body` over a connection of its own and returns the body of the answer. Raises as `Connection.ask`."""
    with connect(url) as connection:
        return connection.ask(request_bytes(urlsplit(url).path, body))
