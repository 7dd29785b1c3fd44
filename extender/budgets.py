"""What tenants may make the process do or keep: budgets with a total and with a share for each tenant.

Each budget is declared where it is spent. Its amounts and their derivation are beside the code, and in one table in
docs/budgets.md. A budget that is spent refuses only those who hold more than their share of it. While memory is short
all budgets are smaller; see `Scarcity`.

A tenant is the namespace of the pod that an authenticated caller asks about. All callers who are not authenticated are
one tenant together.
"""

from collections import Counter
from collections.abc import Callable, Mapping

import msgspec

from extender.metrics import counter_of, gauge_of

OPERATOR = ""
"""The tenant of what the operator starts, from the command line for example. No share limits it."""
UNAUTHENTICATED = "?"
"""The tenant of all callers who have not shown who they are. No namespace has this name."""


class BudgetSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of a budget, in words for people, from which the budget is made.

    `name` begins with the module that declares it. `most_each` is what one tenant gets while it is alone; if others
    want the same, each gets less. `why` says where the two amounts come from.
    """

    name: str
    unit: str
    total: int
    most_each: int
    why: str


class Use:
    """How much of a budget is in use, and how often it refused, over all objects that share its declaration."""

    __slots__ = ("in_use", "refusals")

    def __init__(self) -> None:
        self.in_use = 0
        self.refusals = 0


_DECLARED: dict[str, BudgetSpec] = {}
_USES: dict[str, Use] = {}


def declare_budget(name: str, *, unit: str, total: int, most_each: int, why: str) -> BudgetSpec:
    """Declares a budget when its module is imported. Raises ValueError if the name already belongs to another one."""
    spec = BudgetSpec(name=name, unit=unit, total=total, most_each=most_each, why=why)
    if _DECLARED.setdefault(name, spec) != spec:
        raise ValueError(f"there are two budgets named {name}")
    _USES.setdefault(name, Use())
    return spec


def budgets() -> tuple[BudgetSpec, ...]:
    """Returns the budgets of all modules imported so far, by name."""
    return tuple(_DECLARED[name] for name in sorted(_DECLARED))


def use_of(spec: BudgetSpec) -> Use:
    """Returns the figures that the metrics show for this budget."""
    return _USES[spec.name]


class Scarcity:
    """Whether memory is short: then all budgets of the process are a quarter of what they are otherwise.

    What is held already stays until it is given back, but nothing is taken before enough of it has been.
    """

    def __init__(self) -> None:
        self.divisor = 1

    @property
    def is_on(self) -> bool:
        """Whether budgets are smaller now."""
        return self.divisor > 1

    def set_on(self, is_on: bool) -> None:
        """Makes budgets smaller, or as large as they are declared."""
        self.divisor = 4 if is_on else 1

    def scaled(self, amount: int) -> int:
        """What is left of an amount now; at least 1."""
        return max(1, amount // self.divisor)


SCARCITY = Scarcity()


class Shares:
    """How much of one amount each tenant holds, and whether it may hold more.

    A tenant that is alone may hold `most_each`. Of several tenants that hold or want some, each may hold the total
    divided by one more than there are of them. So a tenant that comes next finds a share free, unless the others came
    to what they hold while they were fewer.
    """

    def __init__(self, total: int, most_each: int) -> None:
        self.held = 0
        self._total = total
        self._most_each = most_each
        self._held_by: Counter[str] = Counter()
        self._wanted_by: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """How much there is now."""
        return SCARCITY.scaled(self._total)

    @property
    def is_idle(self) -> bool:
        """Whether nobody holds or wants any."""
        return not self._wanted_by

    def want(self, tenant: str) -> None:
        """Notes that the tenant holds or waits for one more thing of any cost."""
        self._wanted_by[tenant] += 1

    def unwant(self, tenant: str) -> None:
        """Takes back one `want`."""
        _reduce(self._wanted_by, tenant, 1)

    def admits(self, tenant: str, cost: int = 1) -> bool:
        """Whether the tenant may hold so much more now."""
        if self.held + cost > self.total:
            return False
        return tenant == OPERATOR or self._held_by[tenant] + cost <= self.share_of(tenant)

    def share_of(self, tenant: str) -> int:
        """How much the tenant may hold while as many tenants as now hold or want some; at least 1."""
        tenants = len(self._wanted_by) + (tenant not in self._wanted_by)
        most_each = SCARCITY.scaled(self._most_each)
        return most_each if tenants == 1 else max(1, min(most_each, self.total // (tenants + 1)))

    def held_by(self, tenant: str) -> int:
        """How much the tenant holds."""
        return self._held_by[tenant]

    def largest_holder(self) -> str:
        """Returns the tenant that holds most, of those that a share limits; the operator if there is none."""
        held = [(cost, tenant) for tenant, cost in self._held_by.items() if tenant != OPERATOR]
        return max(held)[1] if held else OPERATOR

    def take(self, tenant: str, cost: int = 1) -> None:
        """Notes that the tenant holds so much more."""
        self.held += cost
        self._held_by[tenant] += cost

    def give_back(self, tenant: str, cost: int = 1) -> None:
        """Notes that the tenant holds so much less."""
        self.held -= cost
        _reduce(self._held_by, tenant, cost)


class Budget:
    """An amount that is refused when it is spent: nobody waits for it. For what waits there is `turns.Turns`."""

    def __init__(self, spec: BudgetSpec, *, total: int | None = None) -> None:
        """`total` replaces the declared one, and the most for each tenant becomes as much smaller or larger."""
        size = spec.total if total is None else total
        self._shares = Shares(size, max(1, spec.most_each * size // spec.total))
        self._use = use_of(spec)

    def admits(self, tenant: str, cost: int = 1) -> bool:
        """Whether `take` would take so much now."""
        return self._shares.admits(tenant, cost)

    def take(self, tenant: str, cost: int = 1) -> bool:
        """Takes so much for the tenant until `give_back`. Returns False, and takes nothing, if that is too much."""
        if not self._shares.admits(tenant, cost):
            self._use.refusals += 1
            return False
        self._shares.want(tenant)
        self._shares.take(tenant, cost)
        self._use.in_use += cost
        return True

    def give_back(self, tenant: str, cost: int = 1) -> None:
        """Ends one `take` of the same cost."""
        self._shares.unwant(tenant)
        self._shares.give_back(tenant, cost)
        self._use.in_use -= cost

    def held_by(self, tenant: str) -> int:
        """How much the tenant holds."""
        return self._shares.held_by(tenant)

    def largest_holder(self) -> str:
        """Returns the tenant that holds most."""
        return self._shares.largest_holder()


def _reduce(counts: "Counter[str]", tenant: str, amount: int) -> None:
    counts[tenant] -= amount
    if not counts[tenant]:
        del counts[tenant]


def _figures(figure: Callable[[BudgetSpec], float]) -> Mapping[str, float]:
    return {spec.name: figure(spec) for spec in budgets()}


gauge_of(
    "multiarch_budget_in_use",
    "How much of each budget is in use, in the budget's unit.",
    "budget",
    lambda: _figures(lambda spec: use_of(spec).in_use),
)
gauge_of(
    "multiarch_budget_total",
    "How much of each budget there is, in the budget's unit.",
    "budget",
    lambda: _figures(lambda spec: SCARCITY.scaled(spec.total)),
)
counter_of(
    "multiarch_budget_refusals",
    "What was refused or dropped because a budget was spent.",
    "budget",
    lambda: _figures(lambda spec: use_of(spec).refusals),
)
