"""What an invariant is: a promise, how often it was really checked, and what has broken it."""

from typing import Any, ClassVar

from tests.worlds.circumstances import Circumstances
from tests.worlds.findings import Violation


class Invariant:
    """A promise. `floor` is how many checks 100 worlds make at least: one that is never checked holds nothing."""

    name: ClassVar[str] = ""
    promise: ClassVar[str] = ""
    floor: ClassVar[int] = 1

    def __init__(self, world: Circumstances) -> None:
        self.world = world
        self.checks = 0

    def start(self) -> None:
        """Called before the first event."""

    async def finish(self) -> None:
        """Called after the quiet time."""

    def end(self) -> None:
        """Called once all replicas have been ended."""

    def check(self, holds: bool, what: str, **fields: Any) -> bool:
        """Counts a check whose precondition is met, and notes a violation unless the promise `holds`."""
        self.checks += 1
        if not holds:
            details = " ".join(f"{key}={value}" for key, value in fields.items())
            self.world.violate(Violation(self.name, self.world.now, f"{what} {details}".rstrip()))
        return holds
