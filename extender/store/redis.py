"""The store on a server with Redis' protocol (Redis, Valkey and others), shared by replicas.

Uses MGET, and SET with EX, which every such server has. Does not support Redis Cluster. Rows expire some time
after they were last written; the server's own setting `maxmemory` bounds their total size. Rows are believed as they
are: who may write them is up to the server's users and TLS.
"""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec
from redis.asyncio import BlockingConnectionPool, Redis, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import AuthenticationError, AuthorizationError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeout

from extender.credentials.keyring import CredentialId
from extender.images.reference import PackedDigest, unpack_digest
from extender.store.rows import (
    SCHEMA,
    Batch,
    NameRow,
    StoreError,
    decode_name,
    encode_name,
)
from extender.tls_context import CurrentContext

T = TypeVar("T")

# Of which eight may read, one write, and one be about to close: a command takes a millisecond.
_CONNECTIONS = 10
_CONNECT_SECONDS = 2.0  # to begin a connection, with TLS and login, or to end it; whoever sends a command bounds that


class RedisServer(msgspec.Struct, frozen=True, kw_only=True):
    """The server's address and login. `tls` is None for a plain connection."""

    host: str
    port: int = 6379
    database: int = 0
    username: str = ""
    password: str = ""
    prefix: str = "multiarch-extender:"
    tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        """Shows the address only."""
        return f"RedisServer({self.address!r})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        """As `__repr__`: msgspec's own would show the password in a pretty-printer."""
        return [("address", self.address)]

    @property
    def address(self) -> str:
        """The URL `redis://host:port/database`, without login."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.tls else 'redis'}://{host}:{self.port}/{self.database}"


class RedisStore:
    """A store with a key for each row's record. Connects on first use, and again after a connection broke.

    A denial has a key too, and rows confirmed before it are ignored: a replica that still has such rows to write cannot
    restore them.
    """

    is_shared = True

    def __init__(self, server: Callable[[], RedisServer], *, keep_seconds: float) -> None:
        """Rows expire `keep_seconds` after they were last written, which is longer than they could be of use.

        `server` gives the server; its login and TLS context may change, and count for connections opened then.
        """
        self.location = server().address
        self._prefix = f"{server().prefix}{SCHEMA}:"
        self._keep_seconds = int(keep_seconds)
        self._client = Redis(connection_pool=_pool_of(server))

    async def rows(self) -> AsyncIterator[Sequence[NameRow | None]]:
        """Yields nothing: `get` reads the rows of other replicas when a lookup needs them."""
        nothing: tuple[Sequence[NameRow | None], ...] = ()
        for rows in nothing:
            yield rows

    async def get(
        self, repository: str, name: PackedDigest, credential_ids: Sequence[CredentialId]
    ) -> Sequence[NameRow | None]:
        """Sends one command."""
        names = [self._name_key(repository, name, credential_id) for credential_id in credential_ids]
        denials = [self._denial_key(repository, name, credential_id) for credential_id in credential_ids]
        records = cast("list[bytes | None]", await _translated(self._client.mget([*names, *denials])))
        rows: list[NameRow | None] = []
        for credential_id, record, denial in zip(credential_ids, records, records[len(names) :], strict=False):
            denied_at = _time(denial)
            if denied_at is None:
                rows.append(None)
            elif record is not None:
                row = decode_name(repository, name, credential_id, record)
                if row is None or row.confirmed_at > denied_at:
                    rows.append(row)
        return rows

    async def put(self, batch: Batch) -> None:
        """Writes in one round trip, denials first. What was written before an error stays."""
        values: dict[str, bytes] = {}
        for key, at in batch.denials.items():
            values[self._denial_key(*key)] = repr(at).encode()
        for row in batch.names:
            values[self._name_key(row.repository, row.name, row.credential_id)] = encode_name(row)
        await _translated(self._set(values))

    async def close(self) -> None:
        """Closes all connections."""
        try:
            await self._client.aclose(close_connection_pool=True)
        except (RedisError, OSError):
            return  # the connection had already broken

    async def _set(self, values: Mapping[str, bytes]) -> None:
        async with self._client.pipeline(transaction=False) as pipeline:
            for key, value in values.items():
                pipeline.set(key, value, ex=self._keep_seconds)
            await pipeline.execute()

    def _name_key(self, repository: str, name: PackedDigest, credential_id: CredentialId) -> str:
        return f"{self._prefix}name:{credential_id}:{_image_of(repository, name)}"

    def _denial_key(self, repository: str, name: PackedDigest, credential_id: CredentialId) -> str:
        return f"{self._prefix}denial:{credential_id}:{_image_of(repository, name)}"


def _pool_of(server: Callable[[], RedisServer]) -> BlockingConnectionPool:
    first = server()
    options: dict[str, Any] = {"username": first.username or None}
    if first.password:
        options = {"credential_provider": _CurrentLogin(server)}
    if first.tls:  # as it stays, since the URL's scheme decides
        context = CurrentContext.of(lambda: cast("ssl.SSLContext", server().tls))
        options |= {"connection_class": _TlsConnection, "context": context}
    return BlockingConnectionPool(
        **options,
        host=first.host,
        port=first.port,
        db=first.database,
        max_connections=_CONNECTIONS,
        timeout=None,
        socket_connect_timeout=_CONNECT_SECONDS,
        retry=Retry(NoBackoff(), 1),  # without delay, over a new connection: the server may have closed an idle one
        protocol=2,  # which every such server supports
    )


class _CurrentLogin(CredentialProvider):
    """The login for a connection that is opened now."""

    def __init__(self, server: Callable[[], RedisServer]) -> None:
        self._server = server

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        server = self._server()
        return (server.username, server.password) if server.username else (server.password,)


class _TlsConnection(SSLConnection):
    """A connection with a TLS context of ours, so that certificates are not read for each connection."""

    def __init__(self, *, context: ssl.SSLContext, **options: Any) -> None:  # noqa: ANN401 -- the parent's own
        super().__init__(**options)
        self.ssl_context.context = context


def _image_of(repository: str, name: PackedDigest) -> str:
    mark = ":" if isinstance(name, str) and ":" not in name else "@"
    return f"{repository}{mark}{unpack_digest(name)}"


def _time(record: bytes | None) -> float | None:
    """Returns the time of a denial in seconds since the epoch; minus infinity if there was none, None if damaged."""
    try:
        return float(record) if record is not None else float("-inf")
    except ValueError:
        return None


async def _translated(work: Awaitable[T]) -> T:
    """Returns the result of `work`.

    Raises:
        StoreError: the command failed. The message does not quote the server, which may repeat what it was sent.
    """
    try:
        return await work
    except RedisTimeout as exc:
        raise StoreError("timeout", "the server does not answer in time") from exc
    except (AuthenticationError, AuthorizationError) as exc:
        raise StoreError("unavailable", "the server does not accept the login") from exc
    except ResponseError as exc:
        raise StoreError("unwritable", f"the server refuses the command ({type(exc).__name__})") from exc
    except (RedisError, OSError) as exc:
        raise StoreError("unavailable", f"no connection ({type(exc).__name__})") from exc
