"""The played kube-scheduler against what the real one does (facts of its sources, and of its runs beside a service)."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from testbed.memory_http import Request, Response, serve_http
from testbed.memory_network import Network, run_in_memory
from testbed.objects import fake_node, pod
from tests.worlds.api_errors import ApiError
from tests.worlds.api_server import ApiServer
from tests.worlds.installation import put_in_place
from tests.worlds.plan import ExtenderConfig
from tests.worlds.scheduler import KubeScheduler
from tests.worlds.scheduler_election import SchedulerElection
from tests.worlds.trace import Trace

Json = dict[str, Any]
URL = "http://10.0.1.1:8880/scheduler/"
NO_LABEL = "node(s) didn't match Pod's node affinity/selector"


class _Api(ApiServer):
    refuses_binding = False

    async def bind(self, namespace: str, name: str, node: str) -> None:
        if self.refuses_binding:
            raise ApiError(500, "InternalError", "etcdserver: request timed out")
        await super().bind(namespace, name, node)


class Cluster:
    """A scheduler with what it works on, and an extender that `answers` by verb, and notes what it is sent."""

    def __init__(self, network: Network, extender: ExtenderConfig | None = None, **options: Any) -> None:
        self.trace = Trace(network.loop.time)
        self.api = _Api(network, self.trace, random.Random(1))
        self.sent: list[tuple[float, str, Json]] = []
        self.answers: dict[str, Any] = {}
        self.status = 200
        self.network = network
        self._scheduler = KubeScheduler(
            network, self.api, self.trace, random.Random(1), extender=extender, extender_url=URL, **options
        )
        serve_http(network, "10.0.1.1", 8880, self._answer)

    async def _answer(self, request: Request) -> Response:
        verb = request.path.removeprefix("/scheduler/")
        arguments = msgspec.json.decode(request.body)
        self.sent.append((self.network.loop.time(), verb, arguments))
        answer = self.answers.get(verb, lambda _: {})
        return Response(self.status, msgspec.json.encode(answer(arguments) if callable(answer) else answer))

    def add(self, name: str, **spec: Any) -> None:
        metadata = {"name": name, "namespace": "shop"}
        put_in_place(self.api, "Pod", {"metadata": metadata, "spec": _pod_spec(**spec), "status": {}})

    def change(self, name: str, **spec: Any) -> None:
        found = self.api.get("Pod", "shop", name)
        assert found
        put_in_place(self.api, "Pod", found | {"spec": found["spec"] | spec})

    def join(self, name: str, architecture: str = "amd64", **options: Any) -> None:
        put_in_place(self.api, "Node", fake_node(name, architecture, **options))

    def node_of(self, name: str) -> str | None:
        found = self.api.get("Pod", "shop", name)
        return found["spec"].get("nodeName") if found else None

    def condition(self, name: str) -> tuple[str, str]:
        found = self.api.get("Pod", "shop", name)
        assert found
        [condition] = [each for each in found["status"]["conditions"] if each["type"] == "PodScheduled"]
        return condition["reason"], condition["message"]

    def times(self, verb: str) -> list[float]:
        return [at for at, name, _ in self.sent if name == verb]

    async def during(self, seconds: float) -> None:
        running = asyncio.ensure_future(self._scheduler.run())
        await asyncio.sleep(seconds)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _pod_spec(**spec: Any) -> Json:
    cpu = spec.pop("cpu", "100m")
    made: Json = pod("p", "app:1", cpu=cpu)["spec"] | {"schedulerName": "default-scheduler"} | spec
    return made


def play(test: Callable[[Cluster], Awaitable[None]], extender: ExtenderConfig | None = None, **options: Any) -> None:
    async def main(network: Network) -> None:
        await test(Cluster(network, extender, **options))

    run_in_memory(main)


def required(*terms: Json) -> Json:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def arch(*values: str) -> Json:
    return {"matchExpressions": [{"key": "kubernetes.io/arch", "operator": "In", "values": list(values)}]}


def pass_all(arguments: Json) -> Json:
    return {"NodeNames": arguments["NodeNames"]}


def test_a_pod_goes_to_a_node_that_its_terms_match() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.join("a", "amd64")
        cluster.join("b", "arm64")
        cluster.add("arm", affinity=required({}, arch("arm64")))
        cluster.add("none", affinity=required({}))
        by_name = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}
        cluster.add("named", affinity=required(by_name))
        await cluster.during(1)
        assert [cluster.node_of(name) for name in ("arm", "none", "named")] == ["b", None, "b"]
        refusal = f"0/2 nodes are available: 2 {NO_LABEL}."
        helpless = "0/2 nodes are available: 2 Preemption is not helpful for scheduling."
        expected = f"{refusal} no new claims to deallocate, preemption: {helpless}"
        assert cluster.condition("none") == ("Unschedulable", expected)

    play(test)


def test_taints_and_room_keep_pods_away() -> None:
    async def test(cluster: Cluster) -> None:
        taint = {"key": "arch", "value": "arm64", "effect": "NoSchedule"}
        cluster.join("a", "amd64", cpu="1")
        cluster.join("b", "arm64", taints=[taint])
        cluster.add("tolerant", nodeSelector={"kubernetes.io/arch": "arm64"}, tolerations=[{"operator": "Exists"}])
        cluster.add("large", cpu="2")
        await cluster.during(1)
        assert cluster.node_of("tolerant") == "b"
        assert cluster.condition("large")[1].startswith(
            "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s). no new claims"
        )

    play(test)


def test_a_gated_pod_waits_until_its_last_gate_is_off() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.join("a", "amd64")
        cluster.add("held", schedulingGates=[{"name": "one"}, {"name": "two"}])
        running = asyncio.ensure_future(cluster.during(30))
        await asyncio.sleep(5)
        cluster.change("held", schedulingGates=[{"name": "two"}])
        await asyncio.sleep(5)
        assert cluster.node_of("held") is None
        cluster.change("held", schedulingGates=[])
        await asyncio.sleep(0.1)
        assert cluster.node_of("held") == "a"
        await running

    play(test)


def test_a_node_that_comes_wakes_the_pods_that_it_fits() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.join("a", "amd64")
        cluster.add("arm", affinity=required(arch("arm64")))
        cluster.add("windows", nodeSelector={"kubernetes.io/os": "windows"})
        running = asyncio.ensure_future(cluster.during(60))
        await asyncio.sleep(10)
        cluster.join("b", "arm64")
        await asyncio.sleep(0.1)
        assert cluster.node_of("arm") == "b"
        attempts = [entry for entry in cluster.trace if entry.event == "FailedScheduling"]
        assert [entry.fields["pod"][1] for entry in attempts] == ["arm", "windows"]
        await running

    play(test)


@pytest.mark.parametrize("names", [True, False])
def test_an_extender_is_asked_in_the_form_it_wants(names: bool) -> None:
    def answer(arguments: Json) -> Json:
        if names:
            return {"NodeNames": ["b"], "FailedAndUnresolvableNodes": {"a": "not built for amd64"}}
        return {"Nodes": {"items": [node for node in arguments["Nodes"]["items"] if node["metadata"]["name"] == "b"]}}

    async def test(cluster: Cluster) -> None:
        cluster.answers["filter"] = answer
        for name in ("a", "b"):
            cluster.join(name)
        cluster.add("app")
        await cluster.during(1)
        assert cluster.node_of("app") == "b"
        [(_, verb, arguments)] = cluster.sent
        assert (verb, list(arguments)) == ("filter", ["Pod", "Nodes", "NodeNames"])
        assert list(arguments["Pod"]) == ["metadata", "spec", "status"]
        if names:
            assert (arguments["Nodes"], arguments["NodeNames"]) == (None, ["a", "b"])
        else:
            assert arguments["NodeNames"] is None
            assert [list(node) for node in arguments["Nodes"]["items"]] == [["metadata", "spec", "status"]] * 2

    play(test, ExtenderConfig(node_cache_capable=names))


def test_a_pod_that_an_extender_refuses_everywhere_comes_back_with_each_event() -> None:
    async def test(cluster: Cluster) -> None:
        reason = "image app:1 is built only for linux/arm64"
        cluster.answers["filter"] = {"NodeNames": [], "FailedAndUnresolvableNodes": {"a": reason}}
        cluster.join("a", "amd64")
        cluster.add("app")
        running = asyncio.ensure_future(cluster.during(60))
        await asyncio.sleep(20)
        assert cluster.condition("app")[1].startswith(f"0/1 nodes are available: 1 {reason}. no new claims")
        # The first attempt's status is an update of the pod, so there is a second after the back-off of a second.
        assert [round(at) for at in cluster.times("filter")] == [0, 2]
        taint = {"key": "other", "effect": "NoSchedule"}
        cluster.join("b", "amd64", taints=[taint])
        await asyncio.sleep(0.1)
        assert [round(at) for at in cluster.times("filter")] == [0, 2, 20]
        cluster.answers["filter"] = {"NodeNames": ["a"]}
        await cluster.api.delete("Node", "", "b")
        await asyncio.sleep(10)
        assert cluster.node_of("app") == "a"
        await running

    play(test, ExtenderConfig(), pops_from_backoff=False)


def test_an_error_is_tried_again_after_its_backoff() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.answers["filter"] = {"Error": "image app:1 is not known yet"}
        cluster.join("a", "amd64")
        cluster.add("app")
        await cluster.during(40)
        assert cluster.condition("app") == ("SchedulerError", "image app:1 is not known yet")
        gaps = [late - early for early, late in zip(cluster.times("filter"), cluster.times("filter")[1:], strict=False)]
        assert [round(gap) for gap in gaps] == [2, 3, 5, 9, 11]

    play(test, ExtenderConfig(), pops_from_backoff=False)


@pytest.mark.parametrize(
    ("answer", "status"),
    [({"Error": "no"}, 200), ({}, 503), ({"NodeNames": ["elsewhere"]}, 200), ([], 200), ({"NodeNames": 5}, 200)],
)
def test_a_failed_call_passes_every_node_where_the_extender_is_ignorable(answer: Any, status: int) -> None:
    async def test(cluster: Cluster) -> None:
        cluster.answers["filter"], cluster.status = answer, status
        cluster.join("a", "amd64")
        cluster.add("app")
        await cluster.during(1)
        assert cluster.node_of("app") == "a"

    play(test, ExtenderConfig(ignorable=True))


def test_an_answer_without_nodes_refuses_them_all() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.join("a", "amd64")
        cluster.add("app")
        await cluster.during(1)
        assert cluster.condition("app")[1].startswith("0/1 nodes are available: no new claims")

    play(test, ExtenderConfig(ignorable=True))


def test_a_silent_extender_costs_its_timeout() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.network.silence("10.0.1.1", True)
        cluster.join("a", "amd64")
        cluster.add("app")
        await cluster.during(2.4)
        reason, message = cluster.condition("app")
        assert reason == "SchedulerError"
        assert message.endswith("context deadline exceeded (Client.Timeout exceeded while awaiting headers)")
        [entry] = [entry for entry in cluster.trace if entry.event == "FailedScheduling"]
        assert entry.at == 2.0

    play(test, ExtenderConfig(timeout_seconds=2.0))


def test_scores_of_the_extender_beat_those_of_the_plugins() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.answers |= {"filter": pass_all, "prioritize": [{"Host": "b", "Score": 10}, {"Host": "c", "Score": 3}]}
        taint = {"key": "costly", "effect": "PreferNoSchedule"}
        for name, cpu, taints in (("a", "64", []), ("b", "1", [taint]), ("c", "64", [])):
            cluster.join(name, "amd64", cpu=cpu, taints=taints)
        for number in range(5):
            cluster.add(f"app-{number}")
        await cluster.during(1)
        assert [cluster.node_of(f"app-{number}") for number in range(5)] == ["b"] * 5

    play(test, ExtenderConfig(weight=10))


def test_scores_that_are_no_integers_count_nothing() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.answers |= {"filter": pass_all, "prioritize": [{"Host": "b", "Score": 7.5}]}
        cluster.join("a", "amd64", cpu="64")
        cluster.join("b", "amd64", cpu="1")
        cluster.add("app")
        await cluster.during(1)
        assert cluster.node_of("app") == "a"

    play(test, ExtenderConfig())


def test_a_pod_of_priority_evicts_the_least_important_and_follows() -> None:
    async def test(cluster: Cluster) -> None:
        for name in ("a", "b"):
            cluster.join(name, "amd64", cpu="1")
            cluster.add(f"low-{name}", cpu="1", nodeSelector={"kubernetes.io/hostname": name}, priority=len(name))
        cluster.change("low-a", priority=50)
        running = asyncio.ensure_future(cluster.during(30))
        await asyncio.sleep(1)
        cluster.add("high", cpu="1", priority=1000)
        await asyncio.sleep(10)
        assert (cluster.node_of("low-a"), cluster.node_of("low-b"), cluster.node_of("high")) == ("a", None, "b")
        await running

    play(test)


def test_a_nominated_pod_counts_where_the_next_one_evicts() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.join("a", cpu="2")
        cluster.add("low", cpu="1", priority=1)
        cluster.add("middle", cpu="1", priority=2)
        running = asyncio.ensure_future(cluster.during(30))
        await asyncio.sleep(1)
        for number in range(2):
            cluster.add(f"high-{number}", cpu="1", priority=1000)
        await asyncio.sleep(10)
        evicted = [entry.fields["pod"][1] for entry in cluster.trace if entry.event == "Preempted"]
        assert evicted == ["low", "middle"]
        assert [cluster.node_of(f"high-{number}") for number in range(2)] == ["a", "a"]
        await running

    play(test)


@pytest.mark.parametrize("names", [True, False])
def test_an_extender_takes_nodes_off_the_candidates_of_preemption(names: bool) -> None:
    def preempt(arguments: Json) -> Json:
        stated = arguments["NodeNameToMetaVictims" if names else "NodeNameToVictims"]
        pods = [each["UID"] if names else each["metadata"]["uid"] for each in stated["a"]["Pods"]]
        return {"NodeNameToMetaVictims": {"a": {"Pods": [{"UID": uid} for uid in pods], "NumPDBViolations": 0}}}

    async def test(cluster: Cluster) -> None:
        cluster.answers["preempt"] = preempt
        cluster.answers["filter"] = lambda asked: {
            "NodeNames": asked["NodeNames"],
            "Nodes": asked["Nodes"],
        }
        for name in ("a", "b"):
            cluster.join(name, "amd64", cpu="1")
            cluster.add(f"low-{name}", cpu="1", nodeSelector={"kubernetes.io/hostname": name})
        cluster.change("low-a", priority=50)
        running = asyncio.ensure_future(cluster.during(30))
        await asyncio.sleep(1)
        cluster.add("high", cpu="1", priority=1000)
        await asyncio.sleep(10)
        assert (cluster.node_of("low-a"), cluster.node_of("low-b"), cluster.node_of("high")) == (None, "b", "a")
        await running

    play(test, ExtenderConfig(node_cache_capable=names))


def test_a_refused_binding_is_tried_again() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.api.refuses_binding = True
        cluster.join("a", "amd64", cpu="100m")
        cluster.add("app")
        running = asyncio.ensure_future(cluster.during(10))
        await asyncio.sleep(0.5)
        assert cluster.condition("app")[0] == "SchedulerError"
        cluster.api.refuses_binding = False
        await asyncio.sleep(5)
        assert cluster.node_of("app") == "a"
        await running

    play(test)


def test_pods_of_other_schedulers_take_room_and_are_left_alone() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.join("a", "amd64", cpu="1")
        cluster.add("other", cpu="800m", schedulerName="multiarch-scheduler")
        running = asyncio.ensure_future(cluster.during(10))
        await asyncio.sleep(1)
        assert cluster.node_of("other") is None
        await cluster.api.bind("shop", "other", "a")
        cluster.add("app", cpu="800m")
        await asyncio.sleep(1)
        assert cluster.node_of("app") is None
        await cluster.api.delete("Pod", "shop", "other")
        await asyncio.sleep(2)
        assert cluster.node_of("app") == "a"
        await running

    play(test)


def test_what_waits_for_nothing_that_happens_is_tried_again_after_five_minutes() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.join("a", "amd64")
        cluster.add("arm", affinity=required(arch("arm64")))
        await cluster.during(400)
        times = [entry.at for entry in cluster.trace if entry.event == "FailedScheduling"]
        assert times == [0.0, 330.0]

    play(test)


def test_another_scheduler_takes_over_when_the_leaders_pod_is_deleted() -> None:
    async def main(network: Network) -> None:
        trace = Trace(network.loop.time)
        api = ApiServer(network, trace, random.Random(1))
        put_in_place(api, "Node", fake_node("a", "amd64"))
        urls = [f"http://10.0.1.{number}:8880" for number in (1, 2)]
        asked: list[str] = []

        async def answer(request: Request) -> Response:
            asked.append(request.caller)
            return Response(200, msgspec.json.encode(pass_all(msgspec.json.decode(request.body))))

        schedulers = []
        for number, url in enumerate(urls, 1):
            address = f"10.0.1.{number}"
            serve_http(network, address, 8880, answer)
            schedulers.append(
                KubeScheduler(
                    network,
                    api,
                    trace,
                    random.Random(1),
                    extender=ExtenderConfig(),
                    extender_url=url,
                    address=address,
                )
            )
        election = SchedulerElection(schedulers, trace)
        running = asyncio.ensure_future(election.run())
        for number in range(3):
            if number == 1:
                election.resign(0)
            put_in_place(api, "Pod", {"metadata": {"name": f"p{number}"}, "spec": _pod_spec(), "status": {}})
            await asyncio.sleep(1.5)
        await asyncio.sleep(2)
        election.resign(0)  # it stands by
        await asyncio.sleep(1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert asked == ["10.0.1.1", "10.0.1.2", "10.0.1.2"]
        assert [entry.at for entry in trace if entry.event == "leads"] == [0.0, 3.5]

    run_in_memory(main)
