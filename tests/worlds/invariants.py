"""All promises that every world is held to."""

from tests.worlds.judging import Invariant
from tests.worlds.promises_of_agreement import ExplainAgrees, FixAgrees, GuardedTemplates
from tests.worlds.promises_of_evictions import NobodyEvictedInVain
from tests.worlds.promises_of_gates import (
    AsKnownAtOnce,
    AsKnownAtTheLimit,
    HeldForGoodReason,
    HeldNoLonger,
    NamespacesWord,
    NothingLeft,
    OthersGatesStay,
    Released,
    WholePatches,
)
from tests.worlds.promises_of_places import (
    Bound,
    GuardedDaemons,
    ImpossiblePods,
    MovedTags,
    OneTruth,
    OwnLogins,
    RightNodes,
)
from tests.worlds.promises_of_reviews import (
    NamespacesWordAtCreation,
    NeverRefused,
    NoEmptyTerms,
    ReplicasAgree,
    SecondPass,
    TwiceIsOnce,
    Untouched,
)
from tests.worlds.promises_of_service import (
    BackToTheFloor,
    EndsInOrder,
    EndsInTime,
    FilterIsRight,
    GentleToRegistries,
    HealthIsTrue,
    HeldOnlyByTheAble,
    NoErrors,
    NoTraceback,
)

INVARIANTS: tuple[type[Invariant], ...] = (
    RightNodes,
    HeldNoLonger,
    Untouched,
    Bound,
    TwiceIsOnce,
    OneTruth,
    GuardedTemplates,
    ExplainAgrees,
    FixAgrees,
    FilterIsRight,
    BackToTheFloor,
    OwnLogins,
    HealthIsTrue,
    HeldOnlyByTheAble,
    NoTraceback,
    AsKnownAtOnce,
    AsKnownAtTheLimit,
    NoErrors,
    MovedTags,
    NeverRefused,
    GuardedDaemons,
    NamespacesWord,
    NamespacesWordAtCreation,
    ReplicasAgree,
    EndsInTime,
    EndsInOrder,
    SecondPass,
    HeldForGoodReason,
    OthersGatesStay,
    WholePatches,
    NothingLeft,
    Released,
    ImpossiblePods,
    NoEmptyTerms,
    GentleToRegistries,
    NobodyEvictedInVain,
)
