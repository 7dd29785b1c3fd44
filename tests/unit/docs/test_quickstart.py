"""What the walk through the quickstart takes from the page, and when it says that something else was printed."""

import pytest

from tests.unit.docs.quickstart import Step, says_the_same, section, steps_of

PAGE = """
```sh
make cluster
```

It says:

```sh
first one
second \\
  --with two
```

```text
what the second prints
```

```console
not walked
```
"""
PODS = "legacy 0/1 Pending 0 1s <none> amd64-3 <none> <none>\nweb 0/1 Pending 0 1s <none> arm64-2 <none> <none>\n"


def test_the_commands_of_a_page_come_in_order() -> None:
    """One for each line, or for those that a backslash joins; text belongs to the last command above it."""
    assert steps_of(PAGE) == [
        Step("make cluster"),
        Step("first one"),
        Step("second --with two", "what the second prints\n"),
    ]


def test_the_page_goes_from_a_cluster_to_a_pod_kept_off_arm64() -> None:
    """By helm itself, and it says what is printed."""
    commands = [step.command for step in steps_of(section())]
    assert commands[0] == "make cluster SERVICE=none"
    assert any(command.startswith("helm install multiarch-extender deploy/helm/") for command in commands)
    shown = {step.command.partition(" --set")[0]: step.shown for step in steps_of(section())}
    assert shown["multiarch-extender doctor --verbose"]
    assert "amd64" in (shown["kubectl get pods -o wide"] or "")


@pytest.mark.parametrize(
    "printed",
    [
        PODS,
        PODS.replace("1s", "1m12s"),
        PODS.replace("amd64-3", "amd64-1").replace("arm64-2", "arm64-tainted"),
        PODS.replace(" 0/1 ", "   0/1    "),
    ],
    ids=["same", "age", "node", "columns"],
)
def test_what_differs_from_run_to_run_is_the_same(printed: str) -> None:
    """Ages, which node of an architecture, the width of columns."""
    assert says_the_same(PODS, printed)


@pytest.mark.parametrize(
    "printed",
    [
        PODS.replace("amd64-3", "arm64-3"),
        PODS.replace("arm64-2", "<none>"),
        PODS.replace("Pending", "Running"),
        PODS.replace("0/1", "1/1"),
        PODS.partition("\n")[0],
        "",
    ],
    ids=["architecture", "unplaced", "phase", "ready", "line", "nothing"],
)
def test_what_matters_differs(printed: str) -> None:
    """The architecture of a pod's node above all."""
    assert not says_the_same(PODS, printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("registry 127.0.0.1:5000: it answers", "registry 127.0.0.1:29999: it answers"),
        ("came back patched in 12 ms", "came back patched in 7 ms"),
        ("kube-apiserver: v1.36.3", "kube-apiserver: v1.34.4"),
        ("multiarch-extender-webhook-5b655bbd97-4wz42 1/1", "multiarch-extender-webhook-69844cb8b5-kkppd 1/1"),
    ],
)
def test_names_and_numbers_of_one_run_are_the_same(shown: str, printed: str) -> None:
    """Ports, times, versions of Kubernetes, names of pods."""
    assert says_the_same(shown, printed)
    assert not says_the_same(shown, f"{printed} not")
