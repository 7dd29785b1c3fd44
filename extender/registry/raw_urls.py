"""URLs whose path and query stay as a server wrote them, since signatures cover them to the byte.

yarl writes `%2F`, `%3A` and `|` anew by itself. Scheme, host and port are in yarl's form, by which they are compared
and checked.
"""

import re
from urllib.parse import quote, urljoin, urlsplit

from yarl import URL

_HAS_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_UNSENDABLE = re.compile(r"[^!-~]+")


def raw_url(base: URL, location: str) -> URL:
    """Returns the URL of `location`, which may be relative to `base`. A fragment is dropped.

    Raises:
        ValueError, LookupError: it is no URL with a host.
    """
    text = location if _HAS_SCHEME.match(location) else urljoin(str(base), location)
    known, parts = URL(text), urlsplit(text)
    return URL.build(
        scheme=known.scheme,
        authority=known.raw_authority,
        path=_sendable(parts.path) or "/",
        query_string=_sendable(parts.query),
        encoded=True,
    )


def with_more_query(url: URL, more: str) -> URL:
    """Returns the URL with encoded parameters behind those that it has."""
    query = "&".join(filter(None, (url.raw_query_string, more)))
    authority = url.raw_authority
    return URL.build(scheme=url.scheme, authority=authority, path=url.raw_path, query_string=query, encoded=True)


def _sendable(text: str) -> str:
    """Returns the text with what no request line may have encoded: white space, controls, and all beyond ASCII."""
    return _UNSENDABLE.sub(lambda found: quote(found[0].encode("utf-8", "surrogateescape")), text)
