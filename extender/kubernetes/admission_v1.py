"""AdmissionReview as kube-apiserver sends it, and the only answer we ever give: allowed, with or without a patch.

Source: k8s.io/api/admission/v1/types.go. Knows the envelope; the object inside stays raw bytes.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from extender.errors import InvalidRequest
from extender.kubernetes.meta_v1 import GroupVersionKind
from extender.kubernetes.wire import Wire

WARNING_CHARACTERS = 256
"""The API truncates longer warnings where there are many (types.go, AdmissionResponse.Warnings)."""


class AdmissionRequest(Wire, frozen=True):
    """What is to be judged. `object` holds the object's JSON, is `null` on DELETE, and empty where the key is missing.

    `namespace` counts, not the object's own, which may be empty on CREATE.
    """

    uid: Annotated[str, msgspec.Meta(min_length=1)]
    kind: GroupVersionKind | None = None
    sub_resource: str | None = None
    namespace: str | None = None
    operation: str | None = None
    object: msgspec.Raw = msgspec.Raw()


class AdmissionReview(Wire, frozen=True):
    """The envelope; what it calls itself is repeated in the answer."""

    request: AdmissionRequest
    api_version: str | None = None
    kind: str | None = None


class _Fields(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    patch_type: str | None = None
    patch: bytes | None = None
    warnings: Sequence[str] | None = None
    audit_annotations: Mapping[str, str] | None = None


_DECODER = msgspec.json.Decoder(AdmissionReview)
_ENCODER = msgspec.json.Encoder()


def decode_review(body: bytes) -> AdmissionReview:
    """The review in `body`; unknown fields are ignored, of the rest only the request's uid must be there.

    Raises:
        InvalidRequest: no JSON, a field of the wrong type, or no request with a uid: without the uid there is no answer
            that kube-apiserver would take, so it gets a 400 and follows the webhook's failurePolicy.
    """
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidRequest(f"this is no AdmissionReview: {exc}") from exc
    except RecursionError as exc:
        raise InvalidRequest("this is no AdmissionReview: it is nested too deep") from exc


def is_pod_creation(request: AdmissionRequest) -> bool:
    """Whether a pod is being created: not changed, bound, evicted or given an ephemeral container."""
    kind = request.kind
    return (
        request.operation == "CREATE"
        and kind is not None
        and kind.kind == "Pod"
        and not kind.group
        and not request.sub_resource
        and bytes(memoryview(request.object)[:1]) == b"{"
    )


def encode_response(
    review: AdmissionReview,
    *,
    patch: bytes = b"",
    warnings: Sequence[str] = (),
    audit_annotations: Mapping[str, str] | None = None,
) -> bytes:
    """The answer that allows what was asked, in the review's own version; its fields as `encode_fields` has them."""
    return complete_response(review, encode_fields(patch, warnings, audit_annotations or {}))


def encode_fields(patch: bytes, warnings: Sequence[str], audit_annotations: Mapping[str, str]) -> bytes:
    """What an answer says beside allowing: the same for all pods alike, and for `complete_response` to complete.

    `patch` is a JSON Patch document (RFC 6902), empty for no change. Warnings are made fit for an HTTP header: one line
    of at most 256 characters each. Audit annotations have one-word keys; kube-apiserver puts the webhook's name before.
    """
    fields = _Fields(
        patch_type="JSONPatch" if patch else None,
        patch=patch or None,
        warnings=[_header_text(warning) for warning in warnings] or None,
        audit_annotations=audit_annotations or None,
    )
    return _ENCODER.encode(fields)


def complete_response(review: AdmissionReview, fields: bytes) -> bytes:
    """The answer that allows what was asked, in the review's own version, and says `fields`."""
    return b'{"apiVersion":%b,"kind":%b,"response":{"uid":%b,"allowed":true%b%b}' % (
        _ENCODER.encode(review.api_version or "admission.k8s.io/v1"),
        _ENCODER.encode(review.kind or "AdmissionReview"),
        _ENCODER.encode(review.request.uid),
        b"" if fields == b"{}" else b",",
        fields[1:],
    )


def _header_text(warning: str) -> str:
    if not warning.isprintable():
        warning = "".join(letter if letter.isprintable() else " " for letter in warning)
    return warning if len(warning) <= WARNING_CHARACTERS else f"{warning[: WARNING_CHARACTERS - 1]}…"
