"""The envelope of kube-apiserver's question and of our answer."""

import base64
from typing import Any

import msgspec
import pytest

from extender.errors import InvalidRequest
from extender.kubernetes.admission_v1 import decode_review, encode_response, is_pod_creation

UID = "705ab4f5-6393-11e8-b7cc-42010a800002"
POD_KIND = {"group": "", "version": "v1", "kind": "Pod"}


def review_bytes(**request: object) -> bytes:
    fields = {"uid": UID, "kind": POD_KIND, "operation": "CREATE", "object": {"spec": {}}, **request}
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": fields})


def test_request_as_kube_apiserver_sends_it_is_read() -> None:
    review = decode_review(
        b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u-1",'
        b'"kind":{"group":"","version":"v1","kind":"Pod"},"resource":{"group":"","version":"v1","resource":"pods"},'
        b'"requestKind":{"group":"","version":"v1","kind":"Pod"},"namespace":"shop","operation":"CREATE",'
        b'"userInfo":{"username":"system:serviceaccount:kube-system:replicaset-controller","groups":["a"]},'
        b'"object":{ "spec":{"future": 1} },"oldObject":null,"dryRun":true,"options":{"kind":"CreateOptions"}}}'
    )
    request = review.request
    assert (request.uid, request.namespace, request.operation) == ("u-1", "shop", "CREATE")
    assert bytes(request.object) == b'{ "spec":{"future": 1} }'
    assert is_pod_creation(request)


def test_all_but_the_uid_may_be_absent() -> None:
    """Or null: a review of which we can only say that it is allowed is still one."""
    fields = ("kind", "resource", "subResource", "namespace", "operation", "object", "oldObject", "dryRun", "options")
    for request in ({"uid": "u-1"}, {"uid": "u-1", **dict.fromkeys(fields)}):
        review = decode_review(msgspec.json.encode({"request": request}))
        assert not is_pod_creation(review.request)
        assert msgspec.json.decode(encode_response(review)) == {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "response": {"uid": "u-1", "allowed": True},
        }


@pytest.mark.parametrize(
    ("body", "says"),
    [
        pytest.param(b"{}", "request", id="empty object"),
        pytest.param(b'{"request":null}', "request", id="null request"),
        pytest.param(b'{"request":{}}', "uid", id="no uid"),
        pytest.param(b'{"request":{"uid":""}}', "uid", id="empty uid"),
        pytest.param(b'{"request":{"uid":7}}', "uid", id="uid that is no string"),
        pytest.param(b'{"request":{"uid":"u","operation":[]}}', "operation", id="operation that is no string"),
        pytest.param(b"", "truncated", id="no body"),
        pytest.param(b'{"request":{"uid":"u"', "truncated", id="cut off"),
        pytest.param(b"[]", "array", id="array"),
        pytest.param(b'{"request":{"uid":"\xff"}}', "utf-8", id="no UTF-8"),
        pytest.param(b'{"request":{"object":' + b"[" * 100_000, "deep", id="nested without end"),
    ],
)
def test_what_is_no_review_is_the_callers_mistake(body: bytes, says: str) -> None:
    """Without a uid to repeat there is no answer kube-apiserver would take, so the message says what is wrong."""
    with pytest.raises(InvalidRequest, match=says):
        decode_review(body)


OTHERS: list[dict[str, object]] = [
    {"operation": "UPDATE"}, {"operation": "DELETE", "object": None}, {"operation": "CONNECT"}, {"operation": ""},
    {"kind": {"group": "apps", "version": "v1", "kind": "Deployment"}}, {"kind": None}, {"subResource": "binding"},
    {"kind": {"group": "example.com", "version": "v1", "kind": "Pod"}}, {"object": None}, {"object": 7},
    {"object": []}, {"object": "{"},
]  # fmt: skip


def test_only_the_creation_of_pods_is_our_business() -> None:
    """Changes, other kinds and subresources are not looked into, nor is what gives nothing to decide on."""
    assert is_pod_creation(decode_review(review_bytes()).request)
    for fields in OTHERS:
        assert not is_pod_creation(decode_review(review_bytes(**fields)).request), fields


def response_of(**parts: Any) -> Any:
    return msgspec.json.decode(encode_response(decode_review(review_bytes()), **parts))["response"]


def test_patch_travels_with_its_type_in_base64() -> None:
    """kube-apiserver refuses an answer that has one of the two. Annotations go into the audit log."""
    patch, audit = b'[{"op":"add","path":"/spec/x","value":1}]', {"verdict": "runs on linux/amd64"}
    assert response_of(patch=patch, audit_annotations=audit) == {
        "uid": UID,
        "allowed": True,
        "patchType": "JSONPatch",
        "patch": base64.b64encode(patch).decode(),
        "auditAnnotations": audit,
    }
    assert response_of(warnings=["w"]) == {"uid": UID, "allowed": True, "warnings": ["w"]}


@pytest.mark.parametrize("version", ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"])
def test_answer_has_the_version_of_the_question(version: str) -> None:
    """An API server that asks in an older version gets that one back."""
    body = msgspec.json.encode({"apiVersion": version, "kind": "AdmissionReview", "request": {"uid": UID}})
    answer = msgspec.json.decode(encode_response(decode_review(body)))
    assert (answer["apiVersion"], answer["kind"]) == (version, "AdmissionReview")


@pytest.mark.parametrize(
    ("warning", "sent"),
    [
        pytest.param("image a is built only for linux/amd64", "image a is built only for linux/amd64", id="as it is"),
        pytest.param("x" * 256, "x" * 256, id="just fits"),
        pytest.param("x" * 257, "x" * 255 + "…", id="too long"),
        pytest.param("two\nlines\x00\x7f", "two lines  ", id="control characters"),
    ],
)
def test_warning_fits_a_header(warning: str, sent: str) -> None:
    """kube-apiserver sends each as an HTTP header: one line, at most 256 characters."""
    assert response_of(warnings=[warning])["warnings"] == [sent]
