"""Makes the store that a URL names, and chooses the default URL from the environment.

Opens no files but certificates and password files.
"""

import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from extender.errors import ConfigError
from extender.masked import without_password
from extender.regular_files import check_regular, read_file
from extender.store.rows import Store
from extender.store.sqlite import SqliteStore
from extender.tls_context import new_client_context
from extender.watched_files import FileSetting, FileWatcher, WatchedFiles

SQLITE = "sqlite:///"
"""What the URL of a SQLite store begins with, before the absolute path of its file."""

_FILE = "images.sqlite"
# An image that nobody needed for a week may be looked up at its registry again.
_KEEP_SECONDS = 7 * 86_400.0
_FORMS = "memory:, sqlite:////path, redis://[user:password@]host[:port][/database] or rediss://…"
_REDIS_OPTIONS = frozenset({"prefix", "password_file", "ca_file", "certificate_file", "key_file"})


def default_store_url(environment: Mapping[str, str]) -> str:
    """Returns the URL of a file in `$STATE_DIRECTORY` (systemd.exec(5): the first of several) or the user's cache.

    A relative `$XDG_CACHE_HOME` is ignored, as the XDG Base Directory Specification demands. Returns `memory:` if there
    is no home folder either.
    """
    state = environment.get("STATE_DIRECTORY", "").partition(":")[0]
    if state.startswith("/"):
        return f"sqlite:///{state.rstrip('/')}/{_FILE}"
    home, cache = environment.get("HOME", ""), environment.get("XDG_CACHE_HOME", "")
    if not cache.startswith("/"):
        cache = f"{home.rstrip('/')}/.cache" if home.startswith("/") else ""
    return f"sqlite:///{cache.rstrip('/')}/multiarch-extender/{_FILE}" if cache else "memory:"


def open_store(url: str, *, size: int, stale_seconds: float, watcher: FileWatcher) -> Store | None:
    """Returns the store at `url`; None for `memory:`. It connects on first use, so a server that is down is no error.

    `size` bounds a store of our own. In a shared store rows expire after a week, or after `stale_seconds` if longer.
    `watcher` gets the files that the URL names.

    Raises:
        ConfigError: the URL names no store, or a file that it names cannot be used. The message holds no password.
    """
    scheme = url.partition(":")[0]
    if url == "memory:":
        return None
    if scheme == "sqlite":
        return SqliteStore(_path_of(url), size=size)
    if scheme in ("redis", "rediss"):
        return _redis_store(url, max(_KEEP_SECONDS, stale_seconds), watcher)
    raise ConfigError(f"cache.url: {without_password(url)!r} is no store; write {_FORMS}")


def _path_of(url: str) -> Path:
    path = url.removeprefix(SQLITE)
    if path == url or not path.startswith("/") or path.endswith("/"):
        raise ConfigError(f"cache.url: {without_password(url)!r} names no file; write sqlite:////path (four slashes)")
    return Path(path)


def _redis_store(url: str, keep_seconds: float, watcher: FileWatcher) -> Store:
    # Imported late: most services do not need the client, whose import takes 40 ms and 6 MB.
    from extender.store.redis import RedisServer, RedisStore

    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
        port, database = parts.port or 6379, int(parts.path.strip("/") or 0)
    except ValueError:  # from None: the exception may quote the login
        raise ConfigError(f"cache.url: {without_password(url)!r} cannot be read; write {_FORMS}") from None
    if not parts.hostname or not options.keys() <= _REDIS_OPTIONS or database < 0:
        known = ", ".join(sorted(_REDIS_OPTIONS))
        raise ConfigError(f"cache.url: {without_password(url)!r} cannot be used; write {_FORMS}, with ?{known} at most")
    host = parts.hostname

    def load() -> RedisServer:
        return RedisServer(
            host=host,
            port=port,
            database=database,
            username=unquote(parts.username or ""),
            password=_password_of(options.get("password_file", ""), unquote(parts.password or "")),
            prefix=options.get("prefix", "multiarch-extender:"),
            tls=_tls_of(options) if parts.scheme == "rediss" else None,
        )

    paths = [path for name, path in options.items() if name.endswith("_file") and path]
    files = WatchedFiles.of(FileSetting.STORE, paths, load)
    if paths:
        watcher.add(files)
    return RedisStore(lambda: files.value, keep_seconds=keep_seconds)


def _password_of(path: str, password: str) -> str:
    """Returns the file's content without surrounding white space; without a file, the URL's own password."""
    if not path:
        return password
    try:
        content = read_file(path).decode().strip()
    except (OSError, ValueError) as exc:
        raise ConfigError(f"cache.url: the password file {path} cannot be read") from exc
    if not content:
        raise ConfigError(f"cache.url: the password file {path} is empty")
    return content


def _tls_of(options: Mapping[str, str]) -> ssl.SSLContext:
    """Returns a context with the system's CAs or the one named, and with our certificate if there is one."""
    try:
        context = new_client_context(options.get("ca_file"))
        if "certificate_file" in options:
            for path in filter(None, (options["certificate_file"], options.get("key_file"))):
                check_regular(path)
            context.load_cert_chain(  # an encrypted key fails instead of prompting
                options["certificate_file"], options.get("key_file"), password=""
            )
    except (OSError, ssl.SSLError) as exc:
        raise ConfigError(f"cache.url: a certificate or key file cannot be used: {exc}") from exc
    return context
