"""The images on one node, and what a kubelet does to have one there.

It is written from kubernetes 1.36, pkg/kubelet/images (image_manager.go, pullmanager) and client-go's flowcontrol
back-off. Limits: no image is collected, and pulls wait for no other pull.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.worlds.containerd import Machine, Outcome, Pulled, PullFailed, pull
from tests.worlds.image_references import Reference, read_reference
from tests.worlds.registries import Registries

FIRST_BACKOFF_SECONDS = 10.0
MAX_BACKOFF_SECONDS = 300.0


class Missing(Exception):
    """The image is not there: `reason` and the text are those of a waiting container."""

    def __init__(self, reason: str, text: str, outcome: Outcome) -> None:
        super().__init__(text)
        self.reason = reason
        self.outcome = outcome


class _Held(NamedTuple):
    pulled: Pulled
    machine: Machine
    logins: frozenset[str]
    """That have pulled it; an empty one stands for everybody."""


class NodeImages:
    """The images that a node has pulled."""

    def __init__(self, registries: Registries) -> None:
        self._registries = registries
        self._held: dict[Reference, _Held] = {}

    def find(self, text: str) -> Pulled | None:
        """The image if it is there."""
        held = self._held.get(read_reference(text))
        return held.pulled if held else None

    async def ensure(
        self, text: str, policy: str, logins: Callable[[], Sequence[str]], machine: Machine
    ) -> tuple[Reference, Pulled]:
        """Returns the image, which it pulls if the policy says so. Raises Missing."""
        try:
            reference = read_reference(text)
        except ValueError as exc:
            message = f'Failed to apply default image tag "{text}": {exc}'
            raise Missing("InvalidImageName", message, Outcome.INVALID) from exc
        held = self._held.get(reference)
        if policy == "Always" or held is None or held.machine != machine:
            held = None
        if held is None and policy == "Never":
            raise Missing("ErrImageNeverPull", _never(text), Outcome.NOT_PRESENT)
        try:
            shown = logins()
            if held and ("" in held.logins or not held.logins.isdisjoint(shown)):
                return reference, held.pulled
            if policy == "Never":
                raise Missing("ErrImageNeverPull", _never(text), Outcome.NOT_PRESENT)
            pulled, login = await pull(self._registries, reference, shown, machine)
        except PullFailed as exc:
            raise Missing("ErrImagePull", str(exc), exc.outcome) from exc
        except ValueError as exc:
            raise Missing("ErrImagePull", str(exc), Outcome.NOT_PULLED) from exc
        known = held.logins if held and held.pulled == pulled else frozenset[str]()
        self._held[reference] = _Held(pulled, machine, known | {login})
        return reference, pulled


def _never(text: str) -> str:
    return f'Container image "{text}" is not present with pull policy of Never'


def default_policy(text: str) -> str:
    """The policy of a container that states none (core/v1 defaults)."""
    try:
        return "Always" if read_reference(text).tag == "latest" else "IfNotPresent"
    except ValueError:
        return "IfNotPresent"


def backoff_seconds(failures: int) -> float:
    """How long to wait after so many failures in a row."""
    return min(FIRST_BACKOFF_SECONDS * 2.0 ** (failures - 1), MAX_BACKOFF_SECONDS)
