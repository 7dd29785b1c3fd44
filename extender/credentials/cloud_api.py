"""Requests to clouds' APIs: what they need, how they are sent, and how they fail.

Holds what is the same for all clouds. Uses no cloud's library, since each cloud takes only two or three requests.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import aiohttp
import msgspec

from extender.credentials.providers import CredentialsUnavailable
from extender.errors import UNDECODABLE
from extender.regular_files import read_file
from extender.tls_context import new_client_context

_TIMEOUT_SECONDS = 10.0
_MAX_BODY_BYTES = 1 << 20

T = TypeVar("T")


class CloudAccess(NamedTuple):
    """What requests to a cloud need.

    `session` allows link-local addresses, since metadata servers have them. `environment` has the variables that the
    cloud's webhook sets in our pod. `wall_clock` gives seconds since the epoch.
    """

    session: aiohttp.ClientSession
    environment: Mapping[str, str]
    wall_clock: Callable[[], float]

    def __repr__(self) -> str:
        """Shows no variable of the environment."""
        return "CloudAccess(…)"

    async def ask(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        form: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> bytes:
        """Sends a request and returns the body of a 200. Does not follow redirects.

        Raises:
            CredentialsUnavailable: another status, no connection, a timeout, or a body of more than 1 MiB.
        """
        host = url.partition("://")[2].partition("/")[0]
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
        data = body if form is None else form
        try:
            async with self.session.request(
                method, url, headers=headers, data=data, timeout=timeout, allow_redirects=False
            ) as response:
                if response.status != 200:
                    raise CredentialsUnavailable(f"{host} answered {response.status}")
                received = await response.content.read(_MAX_BODY_BYTES + 1)
                while len(received) <= _MAX_BODY_BYTES and (more := await response.content.read(_MAX_BODY_BYTES)):
                    received += more
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as exc:
            raise CredentialsUnavailable(f"{host} cannot be reached: {type(exc).__name__}") from None
        if len(received) > _MAX_BODY_BYTES:
            raise CredentialsUnavailable(f"{host} answered more than {_MAX_BODY_BYTES} bytes")
        return received


def open_cloud_session() -> aiohttp.ClientSession:
    """Returns a session for requests to clouds, without cookies. The caller closes it."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=new_client_context()),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Accept-Encoding": "identity"},
        auto_decompress=False,
    )


def decode(decoder: "msgspec.json.Decoder[T]", body: bytes, host: str) -> T:
    """Returns the decoded document. Raises CredentialsUnavailable, whose message does not quote the document."""
    try:
        return decoder.decode(body)
    except UNDECODABLE:
        raise CredentialsUnavailable(f"{host} gave no token") from None


async def read_token(path: str) -> str:
    """Returns the token in a mounted file, which changes while we run.

    Raises:
        CredentialsUnavailable: the file cannot be read.
    """
    try:
        return (await asyncio.to_thread(read_file, path)).decode().strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise CredentialsUnavailable(f"{path} cannot be read: {type(exc).__name__}") from None
