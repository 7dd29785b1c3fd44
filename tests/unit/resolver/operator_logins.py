"""The operator's credentials for tests: a Docker configuration with logins that a test names."""

from collections.abc import Mapping

import msgspec

from extender.credentials.logins import Login, Logins
from extender.credentials.operator_keyring import OperatorKeyring
from extender.credentials.providers import FixedLogins, OperatorFile
from extender.watched_files import FileSetting, WatchedFiles

LABEL = "the operator's Docker configuration"


def operator_with(logins: Mapping[str, tuple[str, str]]) -> OperatorKeyring:
    """Returns a keyring of these names and passwords, by registry or repository; the empty one without any."""
    if not logins:
        return OperatorKeyring(token_bytes=bytes)
    fixed = FixedLogins(Logins(Login(pattern, *login) for pattern, login in logins.items()), label=LABEL)
    file = OperatorFile(msgspec.json.encode(logins), (fixed,))
    return OperatorKeyring([WatchedFiles.of(FileSetting.DOCKER_CONFIG, [], lambda: file)], token_bytes=bytes)
