"""One webhook of a MutatingWebhookConfiguration: whether it is called, its AdmissionReview, and what its answer does.

Source: k8s.io/apiserver/pkg/admission/plugin/webhook/mutating/dispatcher.go and …/webhook/request/admissionreview.go.
Limits: TLS is not played, so that `caBundle` means nothing; a Service's port leads to one that the caller knows.
"""

import base64
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import NamedTuple

from testbed.json_patches import PatchFailed, apply_json_patch
from tests.worlds.admission_rules import Request, is_matched, meets_conditions
from tests.worlds.api_errors import ApiError, forbidden, internal_error
from tests.worlds.api_kinds import Document
from tests.worlds.api_storage import decode, encode
from tests.worlds.cel import CelError

Post = Callable[[str, bytes, float], Awaitable[tuple[int, bytes]]]
"""Sends a body to a path of a webhook's Service, within so many seconds; the status and body of the answer.

Raises ConnectionError and TimeoutError.
"""


class CallFailed(Exception):
    """The webhook could not be asked, so that its failure policy says what happens."""


class Webhook(NamedTuple):
    """A webhook of one configuration."""

    configuration: str
    spec: Document

    @property
    def name(self) -> str:
        """Which tells it from others."""
        return f"{self.configuration}/{self.spec['name']}"

    @property
    def is_reinvoked(self) -> bool:
        """Whether it may be called again after others."""
        return bool(self.spec.get("reinvocationPolicy") == "IfNeeded")

    @property
    def fails_open(self) -> bool:
        """Whether requests pass that it cannot be asked about."""
        return bool(self.spec.get("failurePolicy", "Fail") == "Ignore")

    def applies(self, request: Request) -> bool:
        """Whether it is called. Raises ApiError (403) where a condition has no value and it does not fail open."""
        if request.is_of_admission or not is_matched(self.spec, self.spec.get("rules") or [], request):
            return False
        try:
            return meets_conditions(self.spec.get("matchConditions"), request.scope)
        except CelError as exc:
            if self.fails_open:
                return False
            raise forbidden(request.kind, request.name, f"{self.spec['name']}: {exc}") from exc

    async def call(self, request: Request, uid: str, post: Post, complete: Callable[[Document], Document]) -> bool:
        """Asks it, and changes the object of the request as it says; whether it did. `complete` sets defaults.

        Raises ApiError for a request that it denies, and for a patch that does not apply; CallFailed.
        """
        response = await self._ask(request, uid, post)
        for warning in response.get("warnings") or ():
            request.warn(warning)
        if not response.get("allowed"):
            raise self._denial(response.get("status") or {})
        if not response.get("patch"):
            return False
        if response.get("patchType") != "JSONPatch":
            raise internal_error(f"unsupported patch type {response.get('patchType')}")
        before = request.document
        try:
            operations = decode(base64.b64decode(response["patch"], validate=True))
            request.document = complete(apply_json_patch(before, operations))
        except (PatchFailed, ValueError) as exc:  # whatever the failure policy is
            raise internal_error(str(exc)) from exc
        return bool(request.document != before)

    async def _ask(self, request: Request, uid: str, post: Post) -> Document:
        seconds = self.spec.get("timeoutSeconds", 10)
        path = f"{self.spec['clientConfig']['service']['path']}?timeout={seconds}s"
        try:
            status, body = await post(path, encode(_review(request, uid)), float(seconds))
        except (ConnectionError, TimeoutError) as exc:
            why = "context deadline exceeded" if isinstance(exc, TimeoutError) else f"connection refused: {exc}"
            raise CallFailed(f'failed calling webhook "{self.spec["name"]}": failed to call webhook: {why}') from exc
        if status != HTTPStatus.OK:
            raise CallFailed(f'failed calling webhook "{self.spec["name"]}": failed to call webhook: HTTP {status}')
        try:
            return _response_in(body, uid)
        except (ValueError, KeyError, TypeError) as exc:
            raise CallFailed(f'failed calling webhook "{self.spec["name"]}": invalid answer: {exc}') from exc

    def _denial(self, status: Document) -> ApiError:
        """Source: k8s.io/apiserver/pkg/admission/plugin/webhook/errors/statuserror.go."""
        said = status.get("message") or status.get("reason")
        text = f'admission webhook "{self.spec["name"]}" denied the request'
        code = max(status.get("code") or 0, 400)
        return ApiError(code, status.get("reason") or "", f"{text}: {said}" if said else f"{text} without explanation")


def _response_in(body: bytes, uid: str) -> Document:
    review = decode(body)
    response: Document = review["response"]
    if review.get("kind") != "AdmissionReview" or response.get("uid") != uid:
        raise ValueError("expected an AdmissionReview with the uid of the request")
    return response


def _review(request: Request, uid: str) -> Document:
    kind = request.kind
    named = {"group": kind.group, "version": kind.version, "kind": kind.name}
    resource = {"group": kind.group, "version": kind.version, "resource": kind.plural}
    asked = {
        "uid": uid,
        "kind": named,
        "resource": resource,
        "requestKind": named,
        "requestResource": resource,
        "name": request.name,
        "namespace": request.namespace,
        "operation": request.operation,
        "userInfo": {"username": request.user, "groups": ["system:authenticated"]},
        "object": request.document,
        "oldObject": request.old,
        "dryRun": request.dry_run,
        "options": {"kind": f"{request.operation.capitalize()}Options", "apiVersion": "meta.k8s.io/v1"},
    }
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": asked}
