"""Texts for logs and output without the logins that URLs in them may have."""

import re
from typing import Any

_BEGINNING = r"(?:[a-z][a-z0-9+.-]*:/++|rediss?:(?!/))"
# Up to the last @ of the word, as a password may have any character. What we write of forms and digests is no login.
_LOGIN = re.compile(rf"(?i)({_BEGINNING})(?!\[user:password@)\S*@(?!sha(?:256|512):)")
_WHOLE = re.compile(rf"(?is)^({_BEGINNING}).*@(?!sha(?:256|512):)")
_OPTION = re.compile(
    r"(?i)([?&](?![\w.-]*_file=)[\w.-]*(?:auth|credential|key|pass|pwd|secret|sig|token)[\w.-]*=)[^&\s]+"
)
_STORE = re.compile(
    r"(?P<scheme>rediss?://)(?:(?P<user>[^:@/?#]*)(?P<password>:[^?]*)?@)?(?P<where>[\w.:\[\]-]*(?:/[\w-]*)?)"
    r"(?:\?(?P<query>[^#@]*))?",
    re.ASCII,
)
_SHOWN_OPTION = re.compile(r"(?:prefix|\w+_file)=.*")


def masked(text: str) -> str:
    """The text, such as a message, with `***` in place of logins and passwords of URLs."""
    return _OPTION.sub(r"\1***", _LOGIN.sub(r"\1***@", text))


def masked_value(value: str) -> str:
    """As `masked`, for a text that is a whole URL if it is one: its password may have white space."""
    return masked(_WHOLE.sub(r"\1***@", value))


def without_password(url: str) -> str:
    """The URL of a store without its password; of any other text its scheme alone."""
    if url in ("", "memory:") or url.startswith("sqlite:///"):
        return url
    if not (found := _STORE.fullmatch(url)):
        scheme = re.match(r"[a-z][a-z0-9+.-]{0,20}://", url)
        return f"{scheme[0] if scheme else ''}***"
    login = f"{found['user']}{':***' if found['password'] else ''}@" if found["user"] is not None else ""
    options = (each if _SHOWN_OPTION.fullmatch(each) else _option(each) for each in (found["query"] or "").split("&"))
    query = f"?{'&'.join(options)}" if found["query"] is not None else ""
    return f"{found['scheme']}{login}{found['where']}{query}"


def masked_settings(settings: Any) -> Any:  # noqa: ANN401  # what an encoder takes
    """Settings as lists, maps and scalars, with every text as `masked_value`, and the store's as `without_password`."""
    if isinstance(settings, dict):
        return {
            key: without_password(value) if key == "url" and isinstance(value, str) else masked_settings(value)
            for key, value in settings.items()
        }
    if isinstance(settings, list | tuple):
        return [masked_settings(each) for each in settings]
    return masked_value(settings) if isinstance(settings, str) else settings


def _option(text: str) -> str:
    name, equals, _ = text.partition("=")
    return f"{name}=***" if equals else "***"
