"""Which store a URL means."""

from pathlib import Path

import pytest

from extender.errors import ConfigError
from extender.masked import masked, without_password
from extender.store.redis import RedisServer, RedisStore
from extender.store.sqlite import SqliteStore
from extender.store.url import default_store_url, open_store
from extender.watched_files import FileWatcher


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        ({"STATE_DIRECTORY": "/var/lib/me", "HOME": "/root"}, "sqlite:////var/lib/me/images.sqlite"),
        ({"STATE_DIRECTORY": "/var/lib/me:/var/lib/two"}, "sqlite:////var/lib/me/images.sqlite"),
        ({"STATE_DIRECTORY": "relative", "HOME": "/root"}, "sqlite:////root/.cache/multiarch-extender/images.sqlite"),
        ({"XDG_CACHE_HOME": "/cache", "HOME": "/root"}, "sqlite:////cache/multiarch-extender/images.sqlite"),
        ({"XDG_CACHE_HOME": "cache", "HOME": "/root"}, "sqlite:////root/.cache/multiarch-extender/images.sqlite"),
        ({"XDG_CACHE_HOME": "", "HOME": "/root/"}, "sqlite:////root/.cache/multiarch-extender/images.sqlite"),
        ({"HOME": "/"}, "sqlite:////.cache/multiarch-extender/images.sqlite"),
        ({}, "memory:"),
    ],
    ids=["state", "two-states", "relative-state", "cache", "relative-cache", "empty-cache", "root-home", "nothing"],
)
def test_the_default_is_a_file_where_the_environment_says(environment: dict[str, str], url: str) -> None:
    """The service's own folder first, then the user's cache; without either only memory is left."""
    assert default_store_url(environment) == url


async def test_each_scheme_is_its_store() -> None:
    """Places are shown without login; nothing is connected to or written yet."""
    assert open_store("memory:", size=10, stale_seconds=60, watcher=FileWatcher()) is None
    sqlite = open_store("sqlite:////no/such/folder/file", size=10, stale_seconds=60, watcher=FileWatcher())
    redis = open_store("redis://me:secret@cache:7000/2?prefix=team:", size=10, stale_seconds=60, watcher=FileWatcher())
    tls = open_store("rediss://[::1]", size=10, stale_seconds=60, watcher=FileWatcher())
    assert isinstance(sqlite, SqliteStore)
    assert isinstance(redis, RedisStore)
    assert tls is not None
    assert [store.location for store in (sqlite, redis, tls)] == [
        "sqlite:////no/such/folder/file",
        "redis://cache:7000/2",
        "rediss://[::1]:6379/0",
    ]
    assert not Path("/no/such").exists()
    for store in (sqlite, redis, tls):
        await store.close()


@pytest.mark.parametrize(
    "url",
    ["", "images.sqlite", "memory", "sqlite://file", "sqlite:///relative", "sqlite:////folder/",
     "postgres://me:secret@db", "redis://", "redis://me:secret@:6379", "redis://me:secret@cache:port",
     "redis://me:secret@cache:70000", "redis://me:secret@cache/zero", "redis://me:secret@cache/-1",
     "redis://me:secret@cache?timeout=1", "redis://cache?secret", "redis://me:secret@[::1",
     "redis://cache?password_file=/no/such/secret", "redis://cache?password_file=/dev/null",
     "rediss://cache?ca_file=/no/such/secret", "rediss://cache?certificate_file=/no/such/secret"],
)  # fmt: skip
def test_what_is_no_store_is_refused_without_showing_a_password(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^cache\.url: ") as caught:
        open_store(url, size=10, stale_seconds=60, watcher=FileWatcher())
    assert "secret" not in str(caught.value).replace("/no/such/secret", "")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("x: 'https://me:secret@host/path' is wrong", "x: 'https://***@host/path' is wrong"),
        ("https://secret@host and redis:me:secret@cache", "https://***@host and redis:***@cache"),
        ("at https://me:not@encoded@host", "at https://***@host"),
        ("https://host/?access_token=secret&a=b", "https://host/?access_token=***&a=b"),
        ("redis://cache?password_file=/p", "redis://cache?password_file=/p"),
        ("write redis://[user:password@]host[:port]", "write redis://[user:password@]host[:port]"),
        ("https://host/v2/a@sha256:0", "https://host/v2/a@sha256:0"),
        ("registry:5000/team/app:1@sha256:0 is no text", "registry:5000/team/app:1@sha256:0 is no text"),
    ],
)
def test_a_message_is_shown_without_the_logins_of_its_urls(text: str, shown: str) -> None:
    assert masked(text) == shown


async def test_the_password_may_be_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As mounted secrets are, with a line end; it wins over the URL's."""
    (tmp_path / "password").write_text("from-file\n")
    opened: list[RedisServer] = []
    monkeypatch.setattr(RedisStore, "__init__", lambda self, server, **settings: opened.append(server()))
    open_store(
        f"redis://me:in-url@cache?password_file={tmp_path}/password", size=10, stale_seconds=60, watcher=FileWatcher()
    )
    open_store("redis://me:%40%2F@cache", size=10, stale_seconds=60, watcher=FileWatcher())
    assert [(server.username, server.password) for server in opened] == [("me", "from-file"), ("me", "@/")]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://me:p%40ss@cache:1/0?prefix=a", "redis://me:***@cache:1/0?prefix=a"),
        ("rediss://:secret@cache", "rediss://:***@cache"),
        ("redis://me:not@encoded@cache", "redis://me:***@cache"),
        ("redis://me@cache", "redis://me@cache"),
        ("redis://cache", "redis://cache"),
        ("sqlite:////var/lib/images.sqlite", "sqlite:////var/lib/images.sqlite"),
        ("memory:", "memory:"),
        ("", ""),
        ("redis:me:secret@cache", "***"),
        ("redis:/me:secret@cache", "***"),
        ("me:secret@cache", "***"),
        ("secret@cache", "***"),
        ("redis://cache?password=secret", "redis://cache?password=***"),
        ("redis://me@cache/0?prefix=a&x=secret&ca_file=/ca.pem", "redis://me@cache/0?prefix=a&x=***&ca_file=/ca.pem"),
        ("redis://cache?secret", "redis://cache?***"),
        ("redis://cache?password=of@secret", "redis://***"),
        ("redis://me:se?cret@cache", "redis://***"),
        ("redis://cache#secret", "redis://***"),
        ("redis://me:sec ret@cache", "redis://me:***@cache"),
        ("postgres://me:secret@db", "postgres://***"),
        ("{a: secret}", "***"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_a_server_does_not_show_its_password() -> None:
    server = RedisServer(host="cache", username="me", password="secret")
    assert repr(server) == "RedisServer('redis://cache:6379/0')"
    assert "secret" not in str(server.__rich_repr__())
