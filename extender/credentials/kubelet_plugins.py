"""The kubelet's credential-provider plugins: the programs that ECR, Artifact Registry and ACR provide for nodes.

Accepts the same configuration files and answers as the kubelet. Plugins that need a ServiceAccount's token are refused,
since we may not use a pod's identity.
"""

from pathlib import Path

import msgspec

from extender.bounded_yaml import InvalidYaml
from extender.credential_sources import Source
from extender.credentials.credential_provider_v1 import (
    CONFIG_VERSIONS,
    PROTOCOL,
    CredentialProvider,
    CredentialProviderConfig,
    CredentialProviderRequest,
    CredentialProviderResponse,
)
from extender.credentials.logins import Login, Pattern, parse_pattern
from extender.credentials.programs import run_program
from extender.credentials.providers import CredentialsUnavailable, NamedSources, ProvidedCredentials
from extender.durations import parse_seconds
from extender.errors import ConfigError, naming
from extender.regular_files import read_file
from extender.yaml_values import read_yaml

_RESPONSE = msgspec.json.Decoder(CredentialProviderResponse)


class CredentialPlugin:
    """One plugin, run as the kubelet runs it."""

    source = Source.PROVIDER

    def __init__(self, plugin: CredentialProvider, bin_dir: str) -> None:
        """Raises ConfigError if the kubelet would refuse the plugin, or if it needs a ServiceAccount's token."""
        self.name = plugin.name
        self.principal = plugin.name  # the node's own identity, which stays the same when passwords change
        self._program = _program_of(plugin, bin_dir)
        self._arguments = plugin.args or ()
        self._environment = {variable.name: variable.value for variable in plugin.env or ()}
        self._patterns = _patterns_of(plugin)
        self._default_seconds = _checked_seconds(plugin)

    def serves(self, repository: str) -> bool:
        """Whether one of `matchImages` matches the repository."""
        return any(pattern.matches_repository(repository) for pattern in self._patterns)

    async def provide(self, repository: str) -> ProvidedCredentials:
        """Returns the plugin's answer for the repository.

        Raises:
            CredentialsUnavailable: it fails, takes longer than a minute, or violates the protocol.
        """
        answer = await run_program(
            self._program, self._arguments, msgspec.json.encode(CredentialProviderRequest(repository)),
            environment=self._environment,
        )  # fmt: skip
        try:
            response = _RESPONSE.decode(answer)
            seconds = _seconds(response.cache_duration) if response.cache_duration is not None else None
        except (msgspec.DecodeError, ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
            raise CredentialsUnavailable(f"{self.name} gave no CredentialProviderResponse") from None
        if response.api_version != PROTOCOL:
            raise CredentialsUnavailable(f"{self.name} speaks another version than {PROTOCOL}")
        logins = tuple(Login(key, auth.username, auth.password) for key, auth in (response.auth or {}).items())
        keep_seconds = self._default_seconds if seconds is None else seconds
        return ProvidedCredentials(logins, keep_seconds, response.cache_key_type)


def read_plugins(path: str, bin_dir: str) -> NamedSources:
    """Returns the plugins in the order of the configuration at `path`; their programs are in `bin_dir`.

    Raises:
        ConfigError: the file cannot be read, or the kubelet would not start with it.
    """
    plugins = {msgspec.json.encode(plugin): plugin for plugin in _read_config(path).providers}
    with naming(_setting_of(path)):
        providers = {written: CredentialPlugin(plugin, bin_dir) for written, plugin in plugins.items()}
    return NamedSources(b"\n".join((bin_dir.encode(), *plugins)), providers)


def plugin_programs(path: str, bin_dir: str) -> list[str]:
    """Returns the paths of the programs of the plugins in the file at `path`, in its order.

    Raises:
        ConfigError: the file cannot be read, or is no configuration of plugins.
    """
    return [_program_of(plugin, bin_dir) for plugin in _read_config(path).providers]


def _program_of(plugin: CredentialProvider, bin_dir: str) -> str:
    return str(Path(bin_dir) / plugin.name)


def _setting_of(path: str) -> str:
    return f"registry.credential_providers.config: {path}"


def _read_config(path: str) -> CredentialProviderConfig:
    where = _setting_of(path)
    try:
        config = msgspec.convert(read_yaml(read_file(path), unique_keys=True), CredentialProviderConfig)
    except OSError as exc:
        raise ConfigError(f"{where} cannot be read: {exc.strerror}") from exc
    except (msgspec.MsgspecError, InvalidYaml) as exc:
        raise ConfigError(f"{where}: {exc}") from exc
    if config.api_version not in CONFIG_VERSIONS:
        raise ConfigError(f"{where}: apiVersion must be {CONFIG_VERSIONS[0]}, not {config.api_version}")
    names = [plugin.name for plugin in config.providers]
    if not names or len(set(names)) != len(names):
        raise ConfigError(f"{where}: at least one provider is needed, and each name only once")
    return config


def _patterns_of(plugin: CredentialProvider) -> list[Pattern]:
    patterns = [parse_pattern(text) for text in plugin.match_images]
    good = [pattern for pattern in patterns if pattern and pattern.host]
    if not good or len(good) < len(patterns):
        raise ConfigError(f"{plugin.name}: matchImages must be one or more of host[:port][/path]")
    return good


def _checked_seconds(plugin: CredentialProvider) -> float:
    """Returns the seconds of `defaultCacheDuration`, after the kubelet's checks of the plugin's other fields."""
    if plugin.name in ("", ".", "..") or "/" in plugin.name or " " in plugin.name:
        raise ConfigError(f"{plugin.name!r} is no name of a program in bin_dir")
    if plugin.api_version != PROTOCOL:
        raise ConfigError(f"{plugin.name}: apiVersion must be {PROTOCOL}")
    if plugin.token_attributes is not None:
        raise ConfigError(f"{plugin.name}: tokenAttributes: tokens of ServiceAccounts are not given to plugins")
    try:
        return _seconds(plugin.default_cache_duration)
    except ValueError:
        raise ConfigError(f"{plugin.name}: defaultCacheDuration must be a duration such as 12h or 0s") from None


def _seconds(duration: str) -> float:
    """Returns the seconds of a duration, which may be zero. Raises ValueError if it is malformed or negative."""
    seconds = parse_seconds(duration)
    if seconds < 0:
        raise ValueError("a negative duration")
    return seconds
