"""Pull secrets read from an API server: the two types, what counts as none, and what is an error."""

import base64
import json

import pytest
from structlog.testing import capture_logs

from extender.cluster.client import ClusterClient
from extender.cluster.secrets import ClusterSecrets
from extender.credentials.logins import InvalidLogins, Login
from extender.errors import ClusterError
from tests.integration.cluster.api_server import ApiServer, Document, Refusal

SECRETS = "/api/v1/namespaces/shop/secrets"
JSON_TYPE, LEGACY_TYPE = "kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg"
AUTHS = {"quay.io": {"username": "ann", "password": "hunter2"}}
ANN = Login("quay.io", "ann", "hunter2")


def packed(document: object) -> str:
    return base64.b64encode(json.dumps(document).encode()).decode()


def secret(kind: str, **data: object) -> Document:
    """The secret `pull`; `json=` and `legacy=` fill the two keys that are read."""
    keys = {"json": ".dockerconfigjson", "legacy": ".dockercfg"}
    return {"metadata": {"name": "pull"}, "type": kind, "data": {keys.get(key, key): data[key] for key in data}}


@pytest.fixture
def secrets(client: ClusterClient) -> ClusterSecrets:
    return ClusterSecrets(client)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param(secret(JSON_TYPE, json=packed({"auths": AUTHS})), (ANN,), id="dockerconfigjson"),
        pytest.param(secret(LEGACY_TYPE, legacy=packed(AUTHS)), (ANN,), id="dockercfg"),
        pytest.param(secret(JSON_TYPE, json=packed({"auths": AUTHS}), other=[1]), (ANN,), id="other-keys-are-not-read"),
        pytest.param(secret("Opaque", json=packed({"auths": AUTHS})), (), id="another-type"),
        pytest.param(secret(LEGACY_TYPE, json=packed({"auths": AUTHS})), (), id="legacy-type-with-the-new-key"),
        pytest.param(secret(JSON_TYPE, legacy=packed(AUTHS)), (), id="new-type-with-the-legacy-key"),
        pytest.param(secret(JSON_TYPE, json=""), (), id="empty"),
        pytest.param(secret(JSON_TYPE, json=None), (), id="null"),
        pytest.param({"metadata": {"name": "pull"}}, (), id="bare"),
        pytest.param(secret(JSON_TYPE, json=packed({"auths": {}})), (), id="no-logins"),
        pytest.param(
            secret(JSON_TYPE, json=packed({"credHelpers": {"quay.io": "x"}, "credsStore": "x"})), (), id="helpers"
        ),
    ],
)
async def test_secret_of_either_type_gives_its_logins(
    api: ApiServer, secrets: ClusterSecrets, document: Document, expected: tuple[Login, ...]
) -> None:
    """Type and key must agree, as for the kubelet; whatever else it is, it has none."""
    api.put(SECRETS, document)
    assert await secrets.read_logins("shop", "pull") == expected
    assert [request.path for request in api.requests] == [f"{SECRETS}/pull"]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param("hunter2!", id="no-base64"),
        pytest.param(base64.b64encode(b"hunter2").decode(), id="no-json"),
        pytest.param(base64.b64encode(b'{"x":' + b"[" * 5000).decode(), id="deep"),
        pytest.param(packed({"auths": {"quay.io": {"auth": "hunter2"}}}), id="auth"),
        pytest.param(packed({"auths": {f"hunter2-{number}": {"auth": "YTpi"} for number in range(10_000)}}), id="long"),
    ],
)
async def test_malformed_secret_is_told_from_a_missing_one(api: ApiServer, secrets: ClusterSecrets, data: str) -> None:
    """The kubelet refuses the pod's whole keyring then; the error quotes nothing."""
    api.put(SECRETS, secret(JSON_TYPE, json=data))
    with pytest.raises(InvalidLogins) as caught:
        await secrets.read_logins("shop", "pull")
    assert "hunter2" not in str(caught.value)


async def test_entries_after_the_256th_are_left_out(api: ApiServer, secrets: ClusterSecrets) -> None:
    """The warning names the secret and quotes nothing of it."""
    auths = {f"hunter2-{number}": AUTHS["quay.io"] for number in range(300)}
    api.put(SECRETS, secret(JSON_TYPE, json=packed({"auths": auths})))
    with capture_logs() as lines:
        assert len(await secrets.read_logins("shop", "pull")) == 256
    assert lines == [
        {
            "event": "secret.truncated", "log_level": "warning", "namespace": "shop", "secret": "pull", "kept": 256,
            "left_out": 44,
        }
    ]  # fmt: skip


async def test_missing_secret_has_no_logins(secrets: ClusterSecrets) -> None:
    """As on the node, where the pod's other secrets still count."""
    assert await secrets.read_logins("shop", "pull") == ()


async def test_forbidden_secrets_are_none_with_one_warning(api: ApiServer, secrets: ClusterSecrets) -> None:
    """Until one can be read again."""
    api.put(SECRETS, secret(JSON_TYPE, json=packed({"auths": AUTHS})))
    with capture_logs() as lines:
        for _ in range(3):
            api.refusals.append(("get", Refusal(403, "secrets is forbidden")))
            assert await secrets.read_logins("shop", "pull") == ()
        assert await secrets.read_logins("shop", "pull") == (ANN,)
        api.refusals.append(("get", Refusal(403, "secrets is forbidden")))
        await secrets.read_logins("shop", "pull")
    assert [line["event"] for line in lines] == ["secret.refused"] * 2
    assert "secrets is forbidden" in lines[0]["why"]


@pytest.mark.parametrize("status", [401, 500])
async def test_other_refusals_say_nothing_of_the_secret(api: ApiServer, secrets: ClusterSecrets, status: int) -> None:
    """They are errors, after which the secret is as it was known before."""
    api.refusals += [("get", Refusal(status)), ("get", Refusal(status))]
    with pytest.raises(ClusterError):
        await secrets.read_logins("shop", "pull")


@pytest.mark.parametrize(
    ("namespace", "name"),
    [("shop", name) for name in ("../pods/pull", "pull?watch=true", "Pull", "-pull", "p" * 254, "pull\n")]
    + [(namespace, "pull") for namespace in ("..", "", "shop/secrets")],
)
async def test_what_is_no_name_is_not_asked_for(
    api: ApiServer, secrets: ClusterSecrets, namespace: str, name: str
) -> None:
    """Pod authors write these names, and a path is put together from them."""
    assert await secrets.read_logins(namespace, name) == ()
    assert api.requests == []


async def test_an_answer_that_is_no_secret_is_an_error_without_a_word_of_it(
    api: ApiServer, secrets: ClusterSecrets
) -> None:
    """Whatever stood in it."""
    api.put(SECRETS, {"metadata": {"name": "pull"}, "type": ["hunter2"]})
    with pytest.raises(ClusterError) as caught:
        await secrets.read_logins("shop", "pull")
    assert "hunter2" not in str(caught.value)
    assert caught.value.__suppress_context__
