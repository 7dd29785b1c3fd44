"""How much more slowly work begins that has a pace, while the event loop has too much to do.

Such work is in no hurry, compared with requests that memory can answer.
"""

# An event loop that is later than this has too much to do.
_LATE_SECONDS = 0.003
_MOST = 4.0


class Slowdown:
    """A divisor of a pace, from 1 to 4. Whoever keeps the pace by timers says how late they are."""

    def __init__(self) -> None:
        self.divisor = 1.0

    def note(self, late_seconds: float) -> None:
        """Notes how late a timer was: the divisor grows quickly while they are late, and then shrinks slowly."""
        is_late = late_seconds > _LATE_SECONDS
        self.divisor = min(self.divisor * 1.5, _MOST) if is_late else max(self.divisor / 1.1, 1.0)
