"""The errors of the API server, with the status, reason and message that kube-apiserver gives them.

Source: k8s.io/apimachinery/pkg/api/errors/errors.go.
"""

from collections.abc import Sequence
from typing import Any

from tests.worlds.api_kinds import Kind


class ApiError(Exception):
    """A request that the API server refuses. `warnings` are those that its answer has beside."""

    def __init__(self, code: int, reason: str, message: str, *, retry_after_seconds: int | None = None) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason
        self.message = message
        self.retry_after_seconds = retry_after_seconds
        self.warnings: list[str] = []

    @property
    def status(self) -> dict[str, Any]:
        """The Status that the answer's body has."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }


def bad_request(message: str) -> ApiError:
    """400."""
    return ApiError(400, "BadRequest", message)


def forbidden(kind: Kind, name: str, why: str) -> ApiError:
    """403, as admission plugins say it."""
    return ApiError(403, "Forbidden", f'{kind.granted_as} "{name}" is forbidden: {why}')


def not_found(kind: Kind, name: str) -> ApiError:
    """404."""
    return ApiError(404, "NotFound", f'{kind.granted_as} "{name}" not found')


def already_exists(kind: Kind, name: str) -> ApiError:
    """409 of a creation."""
    return ApiError(409, "AlreadyExists", f'{kind.granted_as} "{name}" already exists')


def conflict(kind: Kind, name: str, why: str = "") -> ApiError:
    """409 of a change; without `why` because the object has another resourceVersion by now."""
    why = why or "the object has been modified; please apply your changes to the latest version and try again"
    return ApiError(409, "Conflict", f'Operation cannot be fulfilled on {kind.granted_as} "{name}": {why}')


def expired(message: str) -> ApiError:
    """410."""
    return ApiError(410, "Expired", message)


def invalid(kind: Kind, name: str, problems: Sequence[str]) -> ApiError:
    """422, with all that is wrong with the object."""
    text = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
    qualified = f"{kind.name}.{kind.group}" if kind.group else kind.name
    return ApiError(422, "Invalid", f'{qualified} "{name}" is invalid: {text}')


def unprocessable_patch() -> ApiError:
    """422 of a JSON patch that does not apply; the API server says no more than that."""
    return ApiError(422, "Invalid", "the server rejected our request due to an error in our request")


def internal_error(message: str) -> ApiError:
    """500."""
    return ApiError(500, "InternalError", f"Internal error occurred: {message}")
