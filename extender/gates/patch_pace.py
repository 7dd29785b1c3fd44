"""How many patches are under way at once: fewer while the API server takes long for each.

A leader's renewals of its Lease wait behind its own patches where the API server is slow. A leader that sent on would
lose the Lease, and with it every patch under way.
"""

_SLOW_SECONDS = 1.0  # a third of what a renewal may take


class PatchPace:
    """The number begins at a quarter of `most`, grows by one with each quick patch, and is halved after a slow one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lowered_at = 0.0
        self.limit = max(1, most // 4)

    def note(self, began: float, ended: float) -> None:
        """Notes a patch, successful or not, by a clock of seconds. Those that began before a halving halve no more."""
        if ended - began < _SLOW_SECONDS:
            self.limit = min(self._most, self.limit + 1)
        elif began >= self._lowered_at:
            self.limit = max(1, self.limit // 2)
            self._lowered_at = ended
