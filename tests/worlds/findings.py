"""What is found in a world: promises that were broken, and what schedulers were answered."""

import msgspec


class Violation(msgspec.Struct, frozen=True):
    """A promise that was broken, when, and how."""

    invariant: str
    at: float
    what: str

    def __str__(self) -> str:
        return f"{self.invariant} at {self.at:.3f}: {self.what}"


class Filtered(msgspec.Struct, frozen=True):
    """The answer to a scheduler about a pod: the nodes that passed, why others did not, or why there is none."""

    passed: tuple[str, ...] = ()
    refused: dict[str, str] = {}
    error: str = ""

    @property
    def is_lost(self) -> bool:
        """Whether no answer of the service came, but an error of the network or of HTTP."""
        return self.error.startswith(("Post ", "failed "))
