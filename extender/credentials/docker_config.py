"""A Docker configuration file: the logins in it and those of its credential helpers.

Implements the helpers' protocol (github.com/docker/docker-credential-helpers). The kubelet does not support helpers, so
a pull secret that names one gets nothing from it.
"""

import re
from collections.abc import Mapping

import msgspec

from extender.credential_sources import Source
from extender.credentials.logins import InvalidLogins, Login, Logins, decode_docker_config
from extender.credentials.programs import ProgramFailed, run_program
from extender.credentials.providers import CredentialsUnavailable, FixedLogins, NamedSources, ProvidedCredentials
from extender.errors import UNDECODABLE, ConfigError
from extender.images.reference import HUB, HUB_LOGIN
from extender.regular_files import read_file

_KEEP_SECONDS = 60.0
_HUB_SERVER = f"https://{HUB_LOGIN}/v1/"
_TOKEN_USERNAME = "<token>"  # noqa: S105 - marks an identity token, is not a password
_NOT_FOUND = (b"credentials not found", b"no credentials server URL", b"no credentials username")
_HELPER = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)


class _Helpers(msgspec.Struct):
    cred_helpers: dict[str, str] = msgspec.field(name="credHelpers", default_factory=dict)
    creds_store: str = msgspec.field(name="credsStore", default="")


class _Found(msgspec.Struct, rename="pascal"):
    username: str = ""
    secret: str = ""


_HELPERS = msgspec.json.Decoder(_Helpers)
_FOUND = msgspec.json.Decoder(_Found)


class CredentialHelpers:
    """The helpers that a configuration names: one per registry in `credHelpers`, `credsStore` for all others."""

    source = Source.HELPER
    name = "docker-credential-helpers"
    principal = ""

    def __init__(self, helpers: Mapping[str, str], store: str) -> None:
        self._helpers = {_host_of(server): helper for server, helper in helpers.items()}
        self._store = store

    def serves(self, repository: str) -> bool:
        """Whether there is a helper for the repository's registry."""
        return bool(self._helpers.get(repository.partition("/")[0], self._store))

    async def provide(self, repository: str) -> ProvidedCredentials:
        """Returns the login that the helper has for the repository's registry, if any; it is cached for a minute.

        Raises:
            CredentialsUnavailable: the helper fails for another reason than having no login.
        """
        host = repository.partition("/")[0]
        program = f"docker-credential-{self._helpers.get(host, self._store)}"
        server = _HUB_SERVER if host == HUB else host
        try:
            answer = await run_program(program, ["get"], server.encode(), environment={})
        except ProgramFailed as exc:
            if any(phrase in exc.output for phrase in _NOT_FOUND):
                return ProvidedCredentials((), _KEEP_SECONDS)
            raise
        return ProvidedCredentials(_logins_in(answer, host, program), _KEEP_SECONDS)


def read_docker_config(path: str) -> NamedSources:
    """Returns what the file has, as `docker login` writes it. The helpers' credentials come before those in `auths`.

    Raises:
        ConfigError: the file cannot be read or is not a Docker configuration. The message names the path and the
            problem, and holds none of the file's secrets.
    """
    try:
        raw = read_file(path)
        logins = Logins(decode_docker_config(raw).logins)
        named = _helpers_in(raw)
    except OSError as exc:
        raise ConfigError(f"registry.docker_config: {path} cannot be read: {exc.strerror}") from exc
    except InvalidLogins as exc:
        raise ConfigError(f"registry.docker_config: {path}: {exc}") from exc
    helpers = CredentialHelpers(named.cred_helpers, named.creds_store)
    providers = {msgspec.json.encode(named): helpers} if named != _Helpers() else {}
    return NamedSources(raw, providers, (FixedLogins(logins, label="the operator's Docker configuration"),))


def _helpers_in(raw: bytes) -> _Helpers:
    try:
        named = _HELPERS.decode(raw)
    except UNDECODABLE:
        raise InvalidLogins("its credHelpers or credsStore name no helpers") from None
    for helper in filter(None, [*named.cred_helpers.values(), named.creds_store]):
        if not _HELPER.fullmatch(helper):
            raise InvalidLogins(f"{helper!r} is no name of a credential helper")
    return named


def _logins_in(answer: bytes, host: str, program: str) -> tuple[Login, ...]:
    try:
        found = _FOUND.decode(answer)
    except UNDECODABLE:
        raise CredentialsUnavailable(f"{program} gave no login: JSON with Username and Secret is expected") from None
    if found.username == _TOKEN_USERNAME:
        raise CredentialsUnavailable(f"{program} gave an identity token for {host}, which is not supported")
    return (Login(host, found.username, found.secret),) if found.username and found.secret else ()


def _host_of(server: str) -> str:
    """Returns the registry as images name it: docker.io for `https://index.docker.io/v1/`."""
    host = server.partition("://")[2].partition("/")[0] if "://" in server else server.partition("/")[0]
    return HUB if host == HUB_LOGIN else host
