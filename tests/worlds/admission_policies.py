"""MutatingAdmissionPolicies and ValidatingAdmissionPolicies: what they do to a request, by their own expressions.

Sources: k8s.io/apiserver/pkg/admission/plugin/policy, mutating and validating, dispatcher.go each. Limits: mutations
are JSON patches, and policies have no parameters.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from testbed.json_patches import PatchFailed, apply_json_patch
from tests.worlds.admission_rules import Request, is_matched, meets_conditions
from tests.worlds.api_errors import ApiError, forbidden
from tests.worlds.api_kinds import Document
from tests.worlds.cel import CelError, Scope, Variables, compile_cel


class BoundPolicy(NamedTuple):
    """A policy and one of its bindings."""

    policy: Document
    binding: Document

    @property
    def name(self) -> str:
        """Of both, which tells it from others."""
        return f"{self.policy['metadata']['name']}/{self.binding['metadata']['name']}"

    @property
    def is_reinvoked(self) -> bool:
        """Whether it may run again after others."""
        return bool(self.policy["spec"].get("reinvocationPolicy") == "IfNeeded")

    @property
    def _is_strict(self) -> bool:
        return bool(self.policy["spec"].get("failurePolicy", "Fail") == "Fail")

    def _applies(self, request: Request) -> bool:
        """Raises CelError."""
        if request.is_of_admission and "Policy" in request.kind.name:
            return False
        spec = self.policy["spec"]
        constraints = spec.get("matchConstraints") or {}
        if not is_matched(constraints, constraints.get("resourceRules") or [], request):
            return False
        narrowed = self.binding["spec"].get("matchResources") or {}
        if not is_matched(narrowed, narrowed.get("resourceRules"), request):
            return False
        return meets_conditions(spec.get("matchConditions"), request.scope)

    def _scope(self, request: Request) -> Scope:
        spec, scope = self.policy["spec"], request.scope
        expressions = {each["name"]: each["expression"] for each in spec.get("variables") or ()}
        return {**scope, "variables": Variables(expressions, scope)}

    def _denied_by(self, exc: Exception, expression: str) -> str:
        policy, binding = self.policy["metadata"]["name"], self.binding["metadata"]["name"]
        return f"policy '{policy}' with binding '{binding}' denied request: expression '{expression}' {exc}"

    def mutate(self, request: Request, complete: Callable[[Document], Document]) -> bool:
        """Changes the object of a request; whether it did. `complete` sets defaults. Raises ApiError (403)."""
        before = request.document
        try:
            if not self._applies(request):
                return False
            for mutation in self.policy["spec"]["mutations"]:
                operations = compile_cel(mutation["jsonPatch"]["expression"])(self._scope(request))
                request.document = complete(apply_json_patch(request.document, operations))
        except (CelError, PatchFailed) as exc:
            request.document = before
            if self._is_strict:
                why = self._denied_by(exc, "resulted in error")
                raise forbidden(request.kind, request.name, why) from exc
            return False
        return request.document != before

    def validate(self, request: Request) -> None:
        """Raises ApiError for a request that it denies."""
        try:
            if not self._applies(request):
                return
            denied = next(iter(self._violations(request)), None)
        except CelError as exc:
            if self._is_strict:
                raise forbidden(request.kind, request.name, self._denied_by(exc, "resulted in error")) from exc
            return
        if denied is None:
            return
        policy, binding = self.policy["metadata"]["name"], self.binding["metadata"]["name"]
        text = f"ValidatingAdmissionPolicy '{policy}' with binding '{binding}' denied request: {denied}"
        if "Warn" in self.binding["spec"]["validationActions"]:
            request.warn(f"Validation failed for {text.replace(' denied request', '')}")
        if "Deny" in self.binding["spec"]["validationActions"]:
            error = forbidden(request.kind, request.name, text)
            raise ApiError(422, "Invalid", error.message)

    def _violations(self, request: Request) -> Iterable[str]:
        scope = self._scope(request)
        for validation in self.policy["spec"]["validations"]:
            if not compile_cel(validation["expression"])(scope):
                yield validation.get("message") or f"failed expression: {validation['expression']}"


def bind(policies: Iterable[Document], bindings: Iterable[Document]) -> list[BoundPolicy]:
    """Each policy with each of its bindings."""
    by_name = {policy["metadata"]["name"]: policy for policy in policies}
    return [
        BoundPolicy(by_name[binding["spec"]["policyName"]], binding)
        for binding in bindings
        if binding["spec"]["policyName"] in by_name
    ]
