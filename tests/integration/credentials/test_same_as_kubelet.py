"""Thousands of random pull secrets, and the same logins for each image as the kubelet's own code reads from them.

Values are null or of the wrong kind, and texts are no UTF-8. A secret that the kubelet refuses is refused here.
"""

import base64
import json
import random
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from extender.cluster.client import ClusterClient
from extender.cluster.secrets import ClusterSecrets
from extender.credentials.logins import InvalidLogins, Logins
from testbed.binaries import PULL_SECRETS, find_built

SECRETS = 4_000
REGISTRIES = [
    "quay.io", "quay.io/team", "https://index.docker.io/v1/", "*.example.com", "a.example.com:5000/v2/x",
    "registry.k8s.io", "auths", "10.0.0.1:5000", "[::1]:5000", "a*.example.com/x", "http://user@ghcr.io/",
    "%zz", "",
]  # fmt: skip
IMAGES = [
    "quay.io/team/app", "quay.io/teams/app", "quay.io/app", "redis", "docker.io/library/redis", "library/redis",
    "index.docker.io/x/y", "a.example.com/x", "b.example.com/y", "a.b.example.com/x", "a.example.com:5000/x/y",
    "a.example.com:5000/v2/x", "a.example.com:5001/x", "registry.k8s.io/pause", "auths/x",
    "10.0.0.1:5000/x", "10.0.0.1/x", "[::1]:5000/x", "ghcr.io/x", "ghcr.io", "localhost/x", "localhost:5000/x",
    "example.com/x", "mcr.microsoft.com/x",
]  # fmt: skip
PROGRAM = find_built(PULL_SECRETS) / "pull-secrets"


class Writer:
    """Writes random JSON by hand, since no library writes text that is none."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def document(self) -> bytes:
        is_legacy = self._chance.random() < 0.3
        body = self._auths() if is_legacy else self._config()
        if self._chance.random() < 0.03:
            odd = [b"", b"null", b"[]", b"{", b'"a"', body[:-1], body + b" x"]
            odd += [b"\xef\xbb\xbf" + body, b"\n" + body + b"\n"]
            body = self._chance.choice(odd)
        return body

    def _config(self) -> bytes:
        pairs = [(self._key("auths"), self._or_odd(self._auths()))]
        if self._chance.random() < 0.2:
            headers = self._chance.choice([b'{"User-Agent": "a"}', b"null", b'{"a": null}', b'{"a": 1}', b"[]"])
            pairs.append((self._key("HttpHeaders"), headers))
        pairs.append((b'"credsStore"', self._chance.choice([b'"desktop"', b'"\\ud800"', b"{}", b"1e999"])))
        return self._object(pairs)

    def _auths(self) -> bytes:
        registries = self._chance.sample(REGISTRIES, self._chance.choice([0, 1, 1, 2, 3, 4]))
        return self._object([(json.dumps(each).encode(), self._or_odd(self._entry())) for each in registries])

    def _entry(self) -> bytes:
        names = self._chance.sample(
            ["username", "password", "auth", "email", "identitytoken"], self._chance.randint(1, 4)
        )
        return self._object(
            [(self._key(each), self._or_odd(self._auth() if each == "auth" else self._text())) for each in names]
        )

    def _auth(self) -> bytes:
        text = self._chance.choice(
            [b"ann:p", b"ann:pw", b"ann:p:q", b"ann:", b":p", b"\xff:p", "änn:p".encode(), b"ann"]
        )
        packed = base64.b64encode(text if self._chance.random() < 0.9 else b"").decode()
        odd = self._chance.choice(
            [packed.rstrip("="), packed + "=", packed[:-1], packed[:4] + "\n" + packed[4:], f" {packed}"]
        )
        return json.dumps(packed if self._chance.random() < 0.8 else odd).encode()

    def _text(self) -> bytes:
        return self._chance.choice(
            [b'"ann"', b'"bob"', b'""', b'"\xff"', b'"\\ud800"', b'"\\u00e4"', "ä".encode().join([b'"'] * 2)]
        )

    def _or_odd(self, value: bytes) -> bytes:
        drawn = self._chance.random()
        return (
            b"null" if drawn < 0.06 else self._chance.choice([b"7", b"[]", b"{}", b"true"]) if drawn < 0.08 else value
        )

    def _key(self, name: str) -> bytes:
        others = [name + " ", f"_{name}", name[:-1], name.replace("u", "ú")]
        return json.dumps(name if self._chance.random() < 0.9 else self._chance.choice(others)).encode()

    @staticmethod
    def _object(pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
        return b"{" + b", ".join(key + b": " + value for key, value in pairs) + b"}"


def secret(seed: int) -> bytes:
    chance, document = random.Random(-seed - 1), Writer(seed).document()
    key, kind = chance.choice([
        (".dockerconfigjson", "kubernetes.io/dockerconfigjson"),
        (".dockerconfigjson", "kubernetes.io/dockerconfigjson"),
        (".dockercfg", "kubernetes.io/dockercfg"), (".dockercfg", "kubernetes.io/dockerconfigjson"),
        (".dockerconfigjson", "Opaque"),
    ])  # fmt: skip
    data = {key: base64.b64encode(document).decode()} if chance.random() < 0.98 else None
    return json.dumps({"metadata": {"name": "a", "namespace": "b"}, "type": kind, "data": data}).encode()


class OneSecret:
    """A cluster whose every secret is this one."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def get(self, path: str, **_limits: object) -> bytes:
        del path
        return self._body


async def ours(body: bytes) -> list[list[list[str]]] | None:
    try:
        logins = Logins(await ClusterSecrets(cast("ClusterClient", OneSecret(body))).read_logins("b", "a"))
    except InvalidLogins:
        return None
    return [[[login.username, login.password] for login in logins.matching(image)] for image in IMAGES]


def kubelets(program: Path, secrets: Sequence[bytes]) -> list[list[list[list[str]]] | None]:
    asked = b"\n".join([json.dumps(IMAGES).encode(), *secrets])
    done = subprocess.run([program], input=asked, capture_output=True, check=True)
    answers = [json.loads(line) for line in done.stdout.decode().splitlines()]
    return [None if answer["error"] else answer["logins"] for answer in answers]


@pytest.mark.skipif(not PROGRAM.exists(), reason="the program is not built: python -m testbed.binaries pull-secrets")
async def test_any_pull_secret_opens_what_it_opens_for_the_kubelet() -> None:
    """The same secrets are refused, and the others have the same logins for each image, in order."""
    secrets = [secret(seed) for seed in range(SECRETS)]
    seen = Counter[str]()
    for body, theirs in zip(secrets, kubelets(PROGRAM, secrets), strict=True):
        assert await ours(body) == theirs, (json.loads(body), theirs)
        seen["refused" if theirs is None else "some" if any(theirs) else "none"] += 1
    assert min(seen[kind] for kind in ("refused", "some", "none")) > SECRETS / 20  # and all of it was tried
