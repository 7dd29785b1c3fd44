"""Which policies are printed for which choice, and what no choice can put into them."""

import pytest

from extender.admission_policies.files import Name, PoliciesImpossible, PolicyChoice, Way, policy_files
from extender.admission_policies.objects import SelectedNamespaces, cel_string
from extender.admission_policies.own_account import own_account_policy
from extender.placement.patch import look

BOTH = PolicyChoice(way=Way.WITH_WEBHOOK)
ALONE = PolicyChoice(way=Way.ALONE)


def names(choice: PolicyChoice, *, has_mutating: bool) -> list[Name]:
    """The names of the files for a cluster."""
    return [file.name for file in policy_files(choice, has_mutating=has_mutating)]


def test_a_cluster_with_mutating_policies_gets_the_gate_in_both_ways() -> None:
    """The account is held first, then pods."""
    assert names(BOTH, has_mutating=True) == [Name.OWN_ACCOUNT, Name.GATE]
    assert names(ALONE, has_mutating=True) == [Name.OWN_ACCOUNT, Name.GATE]


def test_an_older_cluster_gets_what_it_can_have_beside_a_webhook() -> None:
    """There the webhook adds the gate itself."""
    assert names(BOTH, has_mutating=False) == [Name.OWN_ACCOUNT]


@pytest.mark.parametrize(
    ("choice", "saying"),
    [
        (ALONE, "--mode alone: it needs MutatingAdmissionPolicy, which Kubernetes serves from 1.36 on"),
        (PolicyChoice(scheduler="multiarch-scheduler"), "--scheduler-name: it needs MutatingAdmissionPolicy"),
    ],
)
def test_what_an_older_cluster_cannot_have_is_an_error_that_says_why(choice: PolicyChoice, saying: str) -> None:
    """Nothing is printed that would be refused, or would do half."""
    with pytest.raises(PoliciesImpossible, match=saying):
        policy_files(choice, has_mutating=False)


@pytest.mark.parametrize("text", ["o'clock", "back\\slash", "new\nline", "tab\t"])
def test_no_name_ends_its_quotes_in_cel(text: str) -> None:
    """A name with a quote would change the expression."""
    with pytest.raises(ValueError, match="characters that no name"):
        cel_string(text)


def test_no_account_is_an_error() -> None:
    """A policy that holds nobody would look like one that works."""
    with pytest.raises(ValueError, match="no account"):
        own_account_policy([])


@pytest.mark.parametrize("choice", [BOTH, ALONE, PolicyChoice(scheduler="s")])
def test_every_policy_fails_closed_and_every_binding_names_its_policy(choice: PolicyChoice) -> None:
    """A binding that names no policy does nothing, and the API server accepts it."""
    for file in policy_files(choice, has_mutating=True):
        policy, binding = file.objects
        assert look(policy, ["spec", "failurePolicy"]) == "Fail"
        assert look(binding, ["spec", "policyName"]) == look(policy, ["metadata", "name"])
        assert binding["kind"] == f"{policy['kind']}Binding"


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("team", {}, False),
        ("team", {"hold": "no"}, False),
        ("team", {"hold": "yes", "more": "x"}, True),
        ("kube-system", {"hold": "yes"}, False),
        ("multiarch-extender", {"hold": "yes"}, False),
    ],
)
def test_selected_namespaces_have_the_labels_and_are_not_the_systems(
    name: str, labels: dict[str, str], expected: bool
) -> None:
    """The proof looks for a namespace in the way in which the API server selects it."""
    assert SelectedNamespaces({"hold": "yes"}).selects(name, labels) is expected
