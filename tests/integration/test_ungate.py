"""The command `ungate` against a stand-in for the API server: which pods it changes, what it prints, how it ends."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from extender.cluster.views import PODS
from extender.placement.annotations import UNKNOWN
from extender.placement.gate import GATE, GATED_LABEL
from testbed.eventually import eventually
from testbed.forked_commands import run
from tests.integration.cluster.api_server import ApiServer, Document, Refusal, pod, serve_api, write_kubeconfig

OTHER = "example.com/quota"


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    """A server with a pod of each kind: held beside another's gate, held without the label, labelled, untouched."""
    async with serve_api() as server:
        server.put(PODS, gated("both", [OTHER, GATE], {GATED_LABEL: "true", "app": "a"}))
        server.put(PODS, gated("unlabelled", [GATE], {}))
        server.put(PODS, gated("labelled", [], {GATED_LABEL: "true"}))
        server.put(PODS, gated("others", [OTHER], {"app": "a"}))
        yield server


def gated(name: str, gates: list[str], labels: dict[str, str]) -> Document:
    made = pod(name)
    made["metadata"] |= {"labels": labels}
    made["spec"] |= {"schedulingGates": [{"name": gate} for gate in gates]}
    return made


def stored(api: ApiServer, name: str) -> tuple[list[str], list[str]]:
    found = api.find(PODS, name)
    return [gate["name"] for gate in found["spec"].get("schedulingGates", [])], sorted(
        found["metadata"].get("labels", {})
    )


@pytest.fixture
def given(api: ApiServer, tmp_path: Path) -> tuple[str, ...]:
    return "ungate", "-A", "--kubeconfig", str(write_kubeconfig(api, tmp_path))


async def test_our_gate_and_label_go_and_others_stay(api: ApiServer, given: tuple[str, ...]) -> None:
    """Also off a pod that has one without the other; each pod is a line, and the last one counts."""
    code, out, err = await run(*given)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "3 pods with our gate or its label in all namespaces: 3 ungated"
    assert "pod default/unlabelled ungated" in out
    assert [stored(api, name) for name in ("both", "others")] == [([OTHER], ["app"])] * 2
    assert [stored(api, name) for name in ("unlabelled", "labelled")] == [([], [])] * 2
    assert len(api.received("send")) == 3


async def test_dry_run_changes_nothing(api: ApiServer, tmp_path: Path) -> None:
    """It names the pods that would be changed."""
    environment = {"KUBECONFIG": str(write_kubeconfig(api, tmp_path))}
    code, out, _ = await run("ungate", "--all-namespaces", "--dry-run", environment=environment)
    assert code == 0
    assert out.splitlines() == [
        *(f"pod default/{name} would be ungated" for name in ("both", "labelled", "unlabelled")),
        "3 pods with our gate or its label in all namespaces: 3 would be ungated",
    ]
    assert api.received("send") == []


async def test_refused_pod_is_named_and_the_others_go(api: ApiServer, given: tuple[str, ...]) -> None:
    """Exit code 1: somebody has to look at it."""
    api.refusals.append(("send", Refusal(403, "pods is forbidden")))
    code, out, err = await run(*given)
    assert code == 1
    assert "pods is forbidden" in err
    assert "2 ungated" in out.splitlines()[-1]
    assert "1 failed" in out.splitlines()[-1]


POLICIES = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
DELETIONS = ("--first-delete=MutatingAdmissionPolicyBinding/hold", "--first-delete=MutatingWebhookConfiguration/ours")


@pytest.mark.slow  # the service is asked for ten seconds
async def test_what_holds_pods_is_deleted_first_and_pods_held_meanwhile_are_let_go(
    api: ApiServer, given: tuple[str, ...]
) -> None:
    """The service lets one go that it is asked about. A pod that an API server holds seconds later is found too."""
    api.put(POLICIES, {"metadata": {"name": "hold"}})
    ungating = asyncio.create_task(run(*given, *DELETIONS))
    await eventually(lambda: api.find(PODS, "both")["metadata"].get("annotations") == {UNKNOWN: "pass"})
    api.put(PODS, gated("both", [OTHER], {"app": "a"}))
    await eventually(lambda: stored(api, "unlabelled") == ([], []))
    assert [request.path for request in api.received("send")[:2]] == [f"{POLICIES}/hold", f"{WEBHOOKS}/ours"]
    assert "hold" not in api.objects(POLICIES)
    api.put(PODS, gated("late", [GATE], {GATED_LABEL: "true"}))
    code, out, err = await ungating
    assert (code, err) == (0, "")
    assert stored(api, "late") == ([], [])
    counts = "1 ungated by the service, 3 ungated"
    assert out.splitlines()[-1] == f"4 pods with our gate or its label in all namespaces: {counts}"


@pytest.mark.slow  # it tries for ten seconds
async def test_what_may_not_be_deleted_is_said_and_pods_are_let_go_all_the_same(
    api: ApiServer, given: tuple[str, ...]
) -> None:
    """Exit code 1; a lenient call ends with 0, and says the same."""
    for lenient, expected in (([], 1), (["--lenient"], 0)):
        api.refusals.append(("send", Refusal(403, "deletion is forbidden")))
        code, out, err = await run(*given, DELETIONS[0], *lenient)
        assert code == expected
        assert "deletion is forbidden" in err
        assert "pods with our gate or its label in all namespaces" in out
    assert stored(api, "both") == ([OTHER], ["app"])


async def test_time_is_limited(api: ApiServer, given: tuple[str, ...]) -> None:
    """An API server that does not answer holds nothing up for longer than the caller says."""
    api.is_open.clear()
    for lenient, expected in (([], 1), (["--lenient"], 0)):
        code, _, err = await run(*given, "--seconds=0.1", *lenient)
        assert (code, err) == (expected, "error: ended after 0.1 s; some pods may have our gate yet\n")


async def test_no_cluster_holds_no_hook_up() -> None:
    """It is an error of the configuration otherwise."""
    code, _, err = await run("ungate", "-A", "--lenient", "--kubeconfig", "/absent")
    assert (code, err.startswith("error: ")) == (0, True)
