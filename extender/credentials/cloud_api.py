"""What a cloud is asked with, one plain request to its API, and the token that it mounts into our pod.

Knows how such requests fail, and no cloud. No cloud's library is used: what is asked is two or three requests each.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import aiohttp
import msgspec

from extender.credentials.providers import CredentialsUnavailable

_TIMEOUT_SECONDS = 10.0
_MAX_BODY_BYTES = 1 << 20

T = TypeVar("T")


@dataclass(frozen=True, repr=False)
class CloudAccess:
    """What a cloud is asked with.

    `session` lets link-local addresses be reached, since metadata servers have them. `environment` is what the cloud's
    webhook gave our pod. `wall_clock` gives seconds since the epoch.
    """

    session: aiohttp.ClientSession
    environment: Mapping[str, str]
    wall_clock: Callable[[], float]


async def ask(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    form: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> bytes:
    """The body of a 200; no redirect is followed.

    Raises:
        CredentialsUnavailable: another status, no connection, no answer in time, or more than 1 MiB.
    """
    host = url.partition("://")[2].partition("/")[0]
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
    try:
        async with session.request(
            method, url, headers=headers, data=body if form is None else form, timeout=timeout, allow_redirects=False
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


def decode(decoder: "msgspec.json.Decoder[T]", body: bytes, host: str) -> T:
    """The document, or CredentialsUnavailable without a word of it."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise CredentialsUnavailable(f"{host} gave no token") from None


async def read_token(path: str) -> str:
    """The token in a mounted file, which is renewed there while we run. Raises CredentialsUnavailable."""
    try:
        return (await asyncio.to_thread(Path(path).read_text, "utf-8")).strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise CredentialsUnavailable(f"{path} cannot be read: {type(exc).__name__}") from None
