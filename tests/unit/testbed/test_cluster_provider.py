"""What every run of kube-scheduler needs in its configuration."""

import msgspec
import pytest

from testbed.cluster_provider import complete_scheduler_configuration


@pytest.mark.parametrize("given", ["", {}], ids=["no text", "no keys"])
def test_an_empty_scheduler_configuration_is_completed(given: str | dict[str, str]) -> None:
    """Its type, the kubeconfig, and no leader election: a stopped leader's lease would make the next one wait."""
    assert complete_scheduler_configuration(given, "/k") == {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": "/k"},
        "leaderElection": {"leaderElect": False},
    }


def test_a_given_scheduler_configuration_is_kept() -> None:
    """Only the kubeconfig is ours to say; a file's YAML is taken as text."""
    text = "clientConnection: {kubeconfig: /etc/other, qps: 5000}\nleaderElection: {leaderElect: true}\nparallelism: 4"
    complete = complete_scheduler_configuration(text, "/k")
    assert complete["clientConnection"] == {"kubeconfig": "/k", "qps": 5000}
    assert complete["leaderElection"] == {"leaderElect": True}
    assert complete["parallelism"] == 4


def test_a_scheduler_configuration_that_is_no_mapping_is_refused() -> None:
    """A list of documents is a mistake to be told here, not by a program that will not start."""
    with pytest.raises(msgspec.ValidationError, match="got `array`"):
        complete_scheduler_configuration("- a", "/k")
