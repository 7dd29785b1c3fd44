"""AdmissionReview requests from kube-apiserver, and our responses: allowed, with or without a patch, or refused.

Source: k8s.io/api/admission/v1/types.go. This file decodes the envelope; the object in it stays raw bytes.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from extender.errors import InvalidRequest
from extender.kubernetes.meta_v1 import GroupVersionKind, Wire

WARNING_CHARACTERS = 256
"""The API truncates longer warnings where there are many (types.go, AdmissionResponse.Warnings)."""
_MOST_WARNINGS = 32  # the API server passes on 4,096 characters of all together


class AdmissionRequest(Wire, frozen=True):
    """The request of a review. `object` is the object's JSON: `null` on DELETE, and empty if the key is missing.

    `old_object` is what it was before an UPDATE. Use `namespace`, not the object's own, which may be empty on CREATE.
    """

    uid: Annotated[str, msgspec.Meta(min_length=1)]
    kind: GroupVersionKind | None = None
    sub_resource: str | None = None
    namespace: str | None = None
    operation: str | None = None
    dry_run: bool | None = None
    object: msgspec.Raw = msgspec.Raw()
    old_object: msgspec.Raw = msgspec.Raw()


class AdmissionReview(Wire, frozen=True):
    """The envelope; the response repeats its `api_version` and `kind`."""

    request: AdmissionRequest
    api_version: str | None = None
    kind: str | None = None


class _RefusalStatus(msgspec.Struct, frozen=True):
    message: str
    code: int = 403


class _AdmissionResponse(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    uid: str
    allowed: bool
    status: _RefusalStatus | None = None
    patch_type: str | None = None
    patch: bytes | None = None
    warnings: Sequence[str] | None = None
    audit_annotations: Mapping[str, str] | None = None


class _AnsweredReview(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    response: _AdmissionResponse


_DECODER = msgspec.json.Decoder(AdmissionReview)
_ENCODER = msgspec.json.Encoder()


def decode_review(body: bytes) -> AdmissionReview:
    """The review in `body`. Unknown fields are ignored; only the request's uid is required.

    Raises:
        InvalidRequest: not JSON, a field of the wrong type, or no request with a uid. kube-apiserver accepts no
            response without the uid, so it gets a 400 and follows the webhook's failurePolicy.
    """
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidRequest(f"this is no AdmissionReview: {exc}") from exc
    except RecursionError as exc:
        raise InvalidRequest("this is no AdmissionReview: it is nested too deep") from exc


def is_pod_creation(request: AdmissionRequest) -> bool:
    """Whether the request creates a pod. It does not if it updates, binds or evicts one or adds a container to it."""
    return request.operation == "CREATE" and _has_pod(request, request.object)


def is_pod_update(request: AdmissionRequest) -> bool:
    """Whether the request changes a pod otherwise than by a subresource, as its status, its binding and others are."""
    return request.operation == "UPDATE" and _has_pod(request, request.object) and _has_pod(request, request.old_object)


def _has_pod(request: AdmissionRequest, raw: msgspec.Raw) -> bool:
    return (
        request.kind is not None
        and request.kind.kind == "Pod"
        and not request.kind.group
        and not request.sub_resource
        and bytes(memoryview(raw)[:1]) == b"{"
    )


def encode_response(
    review: AdmissionReview,
    *,
    patch: bytes = b"",
    warnings: Sequence[str] = (),
    audit_annotations: Mapping[str, str] | None = None,
    refusal: str = "",
) -> bytes:
    """The response body to the request, in the review's own version.

    `patch` is a JSON Patch document (RFC 6902), empty for no change. Each warning is made fit for an HTTP header: one
    line of at most 256 characters; those after the first 32 are left out. Audit annotations have one-word keys, to
    which kube-apiserver prepends the webhook's name. A `refusal` is the text with which the request is refused; empty
    allows.
    """
    response = _AdmissionResponse(
        review.request.uid,
        not refusal,
        status=_RefusalStatus(refusal) if refusal else None,
        patch_type="JSONPatch" if patch else None,
        patch=patch or None,
        warnings=[_header_text(warning) for warning in warnings[:_MOST_WARNINGS]] or None,
        audit_annotations=audit_annotations or None,
    )
    version, kind = review.api_version or "admission.k8s.io/v1", review.kind or "AdmissionReview"
    return _ENCODER.encode(_AnsweredReview(version, kind, response))


def _header_text(warning: str) -> str:
    if not warning.isprintable():
        warning = "".join(letter if letter.isprintable() else " " for letter in warning)
    return warning if len(warning) <= WARNING_CHARACTERS else f"{warning[: WARNING_CHARACTERS - 1]}…"
