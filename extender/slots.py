"""How much of something tenants may hold at a time, so that one with much to do leaves room for the others.

A tenant is the namespace of the pod that an authenticated caller asks about. All callers who are not authenticated are
one tenant together.
"""

OPERATOR = ""
"""The tenant of what the operator starts, from the command line for example. No limit of one tenant holds for it."""
UNAUTHENTICATED = "?"
"""The tenant of all callers who have not shown who they are. No namespace has this name."""


class Slots:
    """`total` slots, of which a tenant may hold `each`. Whoever holds none finds the last quarter of them reserved."""

    __slots__ = ("_each", "_held_by", "_shared", "_total", "held")

    def __init__(self, total: int, each: int) -> None:
        self.held = 0
        self._total = total
        self._shared = total - total // 4
        self._each = each
        self._held_by: dict[str, int] = {}

    def admits(self, tenant: str, slots: int = 1) -> bool:
        """Whether `take` would take so many now."""
        held = self.held + slots
        if tenant == OPERATOR or tenant not in self._held_by:
            return held <= self._total
        return held <= self._shared and self._held_by[tenant] + slots <= self._each

    def take(self, tenant: str, slots: int = 1) -> bool:
        """Takes so many for the tenant until `give_back`. Returns False, and takes none, if that is too much."""
        if not self.admits(tenant, slots):
            return False
        self.held += slots
        self._held_by[tenant] = self._held_by.get(tenant, 0) + slots
        return True

    def give_back(self, tenant: str, slots: int = 1) -> None:
        """Ends a `take` of so many."""
        self.held -= slots
        left = self._held_by[tenant] - slots
        if left:
            self._held_by[tenant] = left
        else:
            del self._held_by[tenant]
