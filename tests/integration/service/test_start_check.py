"""What is found before a start that would prevent it."""

from pathlib import Path

import pytest

from extender.config.reading import load_config
from extender.errors import ConfigError
from extender.service.start_check import check_start
from testbed.certificates import Authority

_SERVED = "admission.listen=127.0.0.1:0"
_ALONE = ("cluster=none", "admission.listen=", "cache.url='memory:'")
_NOWHERE = "/nonexistent/file"


async def problems(*settings: str) -> list[str]:
    try:
        await check_start(load_config(None, [*_ALONE, *settings]))
    except ConfigError as exc:
        return str(exc).splitlines()
    return []


async def test_what_serve_could_open_is_right(tmp_path: Path) -> None:
    """Files of every kind, all of them usable."""
    (tmp_path / "hosts").mkdir()
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "key").write_bytes(bytes(32))
    authority = Authority(tmp_path)
    served = authority.issue("webhook")
    assert (
        await problems(
            "admission.listen=127.0.0.1:0",
            f"admission.tls={{certificate: {served.certificate}, key: {served.key}}}",
            f"registry.ca_files=[{authority.certificate}]",
            f"registry.docker_config={tmp_path / 'config.json'}",
            f"registry.mirrors={tmp_path / 'hosts'}",
            f"cache.key_file={tmp_path / 'key'}",
            f"cache.url=sqlite:///{tmp_path}/images.sqlite",
        )
        == []
    )
    assert not (tmp_path / "images.sqlite").exists()


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        (["registry.ca_files=[{}]"], "registry.ca_files"),
        (["registry.docker_config={}"], "registry.docker_config"),
        (["registry.mirrors={}"], "registry.mirrors"),
        (["registry.mirrors=/", "registry.ca_files=[{}]"], "registry.ca_files"),
        (["registry.credential_providers={{config: {}, bin_dir: /bin}}"], "registry.credential_providers.config"),
        (["cache.key_file={}"], "cache.key_file"),
        (["cache.url=redis://cache?password_file={}"], "cache.url"),
        (["cluster={}"], "cluster"),
        ([_SERVED, "admission.tls={{certificate: {}, key: /k}}"], "admission.tls.certificate"),
        ([_SERVED, f"admission.tls={{{{certificate: {__file__}, key: {{}}}}}}"], "admission.tls.key"),
        (
            [_SERVED, f"admission.tls={{{{certificate: {__file__}, key: {__file__}, client_ca: {{}}}}}}"],
            "admission.tls.client_ca",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
async def test_a_file_that_is_not_there_is_named(settings: list[str], path: str) -> None:
    """With the key's path, in a line of its own."""
    (line,) = await problems(*(setting.format(_NOWHERE) for setting in settings))
    assert line.startswith(path)
    assert _NOWHERE in line


async def test_a_folder_that_no_host_can_have_is_named(tmp_path: Path) -> None:
    """As the process that asks registries would say at the start."""
    (tmp_path / "certs.d" / "quay.io:443:old").mkdir(parents=True)
    (tmp_path / "registries.conf").write_text("")
    (line,) = await problems(f"registry.mirrors={tmp_path}/registries.conf")
    assert line.startswith("registry.mirrors: ")
    assert line.endswith("quay.io:443:old: the name of the folder is no host")


async def test_every_listener_and_part_has_its_line(tmp_path: Path) -> None:
    """So that a file is mended once."""
    found = await problems(
        _SERVED, f"admission.tls={{certificate: {_NOWHERE}, key: /k}}", f"cache.key_file={_NOWHERE}",
        f"cluster={tmp_path / 'none'}",
    )  # fmt: skip
    assert [line.partition(":")[0] for line in found] == [
        "admission.tls.certificate",
        "cache.key_file",
        "cluster",
    ]


async def test_what_serve_starts_with_and_cannot_use_is_a_warning(tmp_path: Path) -> None:
    """A plugin's program that is not there, a store whose folder is a file; it starts and does without."""
    (tmp_path / "plugins.yaml").write_text(
        "{apiVersion: kubelet.config.k8s.io/v1, kind: CredentialProviderConfig, providers: [{name: gone,"
        " apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: [ghcr.io], defaultCacheDuration: 1h}]}"
    )
    plugins = f"registry.credential_providers={{config: {tmp_path / 'plugins.yaml'}, bin_dir: {tmp_path}}}"
    store = f"cache.url=sqlite:///{tmp_path / 'plugins.yaml'}/images.sqlite"
    warnings = await check_start(load_config(None, [*_ALONE, plugins, store]))
    assert [warning.partition(" ")[0] for warning in warnings] == [
        "registry.credential_providers.bin_dir:",
        "cache.url:",
    ]
    (tmp_path / "gone").write_text("#!/bin/sh\n")
    (tmp_path / "gone").chmod(0o755)
    store = f"cache.url=sqlite:///{tmp_path}/new/images.sqlite"
    assert await check_start(load_config(None, [*_ALONE, plugins, store])) == []


async def test_nothing_listens_and_nobody_is_asked(tmp_path: Path, closed_port: int) -> None:
    """A kubeconfig of an API server that is not there, a store that is not there, an address that is taken."""
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(
        "{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: c, user: u}}],"
        f" clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{closed_port}'}}}}],"
        " users: [{name: u, user: {token: t}}]}"
    )
    settings = [
        f"cluster={kubeconfig}",
        f"scheduler.listen=127.0.0.1:{closed_port}",
    ]
    settings += [f"cache.url=redis://127.0.0.1:{closed_port}"]
    assert await problems(*settings) == []
