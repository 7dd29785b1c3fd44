"""The kube-scheduler that worlds play beside the real one: the same pods on the same nodes, and the same words.

Both ask an extender of the same answers. What pods and nodes have is drawn from a fixed seed.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web

from testbed.api_client import ApiClient
from testbed.cluster_provider import running_scheduler
from testbed.control_plane import LocalCluster
from testbed.eventually import eventually
from testbed.memory_http import Request, Response, serve_http
from testbed.memory_network import Network, run_in_memory
from testbed.objects import fake_node, namespace, pod
from tests.worlds.api_server import ApiServer
from tests.worlds.defaulting import NOT_READY
from tests.worlds.plan import ExtenderConfig
from tests.worlds.scheduler import KubeScheduler
from tests.worlds.trace import Trace

pytestmark = pytest.mark.e2e

Json = dict[str, Any]
Objects = list[Json]
Outcome = tuple[str, str, str]
NODES, PODS = 9, 60
ARCH, ZONE = "kubernetes.io/arch", "zone"
_UNTRIED: Outcome = ("", "", "")
_VERBS = {"filterVerb": "filter", "prioritizeVerb": "prioritize", "preemptVerb": "preempt"}


def nodes_of(chance: random.Random) -> list[Json]:
    made = []
    for number in range(NODES):
        taints = []
        if chance.random() < 0.3:
            effect = chance.choice(("NoSchedule", "NoExecute", "PreferNoSchedule"))
            taints.append({"key": "pool", "value": "batch", "effect": effect})
        labels = {ZONE: chance.choice("ab"), "size": str(number)}
        node = fake_node(f"n{number}", chance.choice(("amd64", "arm64")), cpu="100", labels=labels, taints=taints)
        node["spec"]["unschedulable"] = chance.random() < 0.1
        made.append(node)
    return made


def pods_of(chance: random.Random, where: str) -> list[Json]:
    made = []
    for number in range(PODS):
        spec: Json = {}
        if chance.random() < 0.3:
            spec["nodeSelector"] = {chance.choice((ARCH, ZONE)): chance.choice(("amd64", "a", "b"))}
        if chance.random() < 0.5:
            terms = [term_of(chance) for _ in range(chance.choice((1, 1, 2)))]
            spec["affinity"] = {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
            }
        if chance.random() < 0.4:
            operator = chance.choice(
                (
                    {"operator": "Exists"},
                    {"key": "pool", "operator": "Exists", "effect": "NoSchedule"},
                    {"key": "pool", "value": "batch"},
                    {"key": "pool", "value": "other"},
                )
            )
            spec["tolerations"] = [operator]
        cpu = "200" if chance.random() < 0.1 else "1m"
        made.append(pod(f"p{number}", "app:1", namespace=where, cpu=cpu, spec=spec))
    return made


def term_of(chance: random.Random) -> Json:
    return chance.choice(
        (
            {},
            {"matchExpressions": [{"key": ARCH, "operator": "In", "values": ["arm64"]}]},
            {"matchExpressions": [{"key": ARCH, "operator": "NotIn", "values": ["arm64"]}]},
            {"matchExpressions": [{"key": "size", "operator": "Gt", "values": ["3"]}]},
            {"matchExpressions": [{"key": "none", "operator": "Exists"}]},
            {
                "matchExpressions": [
                    {"key": ZONE, "operator": "In", "values": ["a"]},
                    {"key": "none", "operator": "DoesNotExist"},
                ]
            },
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["absent"]}]},
        )
    )


Rule = Callable[[str, Json], Any]
"""What an extender answers to a verb and its arguments."""


class Asked:
    """An extender that answers by a rule. `keys` are those of what it was asked, by verb."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.keys: dict[str, set[str]] = {}

    def answer(self, path: str, body: bytes) -> bytes:
        verb, arguments = path.rpartition("/")[2], msgspec.json.decode(body)
        self.keys.setdefault(verb, set()).update(_paths(arguments, ("Pod", "Nodes")))
        return msgspec.json.encode(self.rule(verb, arguments))


def each_in_its_way(verb: str, arguments: Json) -> Any:
    number = int(arguments["Pod"]["metadata"]["name"].removeprefix("p"))
    if verb == "preempt":
        return {"NodeNameToMetaVictims": arguments["NodeNameToMetaVictims"]}
    names = arguments["NodeNames"]
    if verb == "prioritize":
        return [{"Host": name, "Score": (number + int(name[1:])) % NODES} for name in names]
    match number % 6:
        case 0:
            return {"Error": f"image of p{number} is not known yet"}
        case 1:
            return {"NodeNames": [], "FailedAndUnresolvableNodes": dict.fromkeys(names, "built only for linux/s390x")}
        case 2:
            return {"NodeNames": [], "FailedNodes": dict.fromkeys(names, "for now")}
        case 3:
            return {}
        case _:
            return {"NodeNames": names}


def not_on_the_cheapest(verb: str, arguments: Json) -> Any:
    if verb != "preempt":
        return {"NodeNames": arguments["NodeNames"], "Nodes": arguments["Nodes"]} if verb == "filter" else []
    stated = arguments["NodeNameToMetaVictims"] or {
        node: {"Pods": [{"UID": each["metadata"]["uid"]} for each in victims["Pods"]]}
        for node, victims in arguments["NodeNameToVictims"].items()
    }
    return {"NodeNameToMetaVictims": {node: victims for node, victims in stated.items() if node != "n0"}}


def _paths(value: Any, nested: tuple[str, ...]) -> set[str]:
    """The keys of the arguments, and those right below the nested ones."""
    below = {f"{key}.{each}" for key in nested if isinstance(value.get(key), dict) for each in value[key]}
    return {*value, *below}


def outcome(found: Json) -> Outcome:
    """Where the pod is, or why not: its node, reason and message."""
    if node := found["spec"].get("nodeName"):
        return node, "", ""
    conditions = [each for each in found["status"].get("conditions") or () if each["type"] == "PodScheduled"]
    return ("", conditions[0]["reason"], conditions[0]["message"]) if conditions else _UNTRIED


def _priority_class(name: str, value: int) -> Json:
    api_version = "scheduling.k8s.io/v1"
    return {"apiVersion": api_version, "kind": "PriorityClass", "metadata": {"name": name}, "value": value}


def played(objects: Objects, pods: list[Json], config: ExtenderConfig, asked: Asked) -> dict[str, Outcome]:
    async def main(network: Network) -> dict[str, Outcome]:
        async def answer(request: Request) -> Response:
            return Response(200, asked.answer(request.path, request.body))

        serve_http(network, "10.0.1.1", 8880, answer)
        trace = Trace(network.loop.time)
        api = ApiServer(network, trace, random.Random(1))
        for each in objects:
            made = await api.create(each["kind"], each, user="admin")
            if each["kind"] == "Node":  # which the real control plane does not taint here: see LocalCluster
                made["spec"]["taints"] = [taint for taint in made["spec"].get("taints") or () if taint != NOT_READY]
                await api.update("Node", made, user="admin")
        scheduler = KubeScheduler(
            network, api, trace, random.Random(1), extender=config, extender_url="http://10.0.1.1:8880"
        )
        running = asyncio.ensure_future(scheduler.run())
        for each in pods:
            await api.create("Pod", each, user="admin")
        await asyncio.sleep(20)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return {each["metadata"]["name"]: outcome(each) for each in api.list("Pod", pods[0]["metadata"]["namespace"])}

    return run_in_memory(main)


async def compare(
    control_plane: LocalCluster,
    api: ApiClient,
    objects: Objects,
    pods: list[Json],
    where: str,
    rule: Rule,
    config: ExtenderConfig = ExtenderConfig(),  # noqa: B008  # it is frozen
) -> dict[str, Outcome]:
    """What becomes of the pods under both schedulers, which is the same; so is the form of what they ask."""
    expected_asked, asked = Asked(rule), Asked(rule)
    objects = [namespace(where), *objects]
    expected = await asyncio.to_thread(played, objects, pods, config, expected_asked)

    async def answer(request: web.Request) -> web.Response:
        body = asked.answer(request.path, await request.read())
        return web.Response(body=body, content_type="application/json")

    application = web.Application()
    application.router.add_post("/{verb}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    entry = {"urlPrefix": url, **_VERBS, "weight": 10, "nodeCacheCapable": config.node_cache_capable}

    async def outcomes() -> dict[str, Outcome]:
        found = await api.list("Pod", pods[0]["metadata"]["namespace"])
        return {each["metadata"]["name"]: outcome(each) for each in found}

    try:
        with running_scheduler(control_plane, {"extenders": [entry | {"httpTimeout": "2s"}]}):
            for each in (*objects, *pods):
                await api.create(each)
            got = await eventually(outcomes, lambda found: all(each != _UNTRIED for each in found.values()))
            if got != expected:  # evictions take their time
                got = await eventually(outcomes, lambda found: found == expected, seconds=20)
    finally:
        await runner.cleanup()
    assert asked.keys == expected_asked.keys
    return got


async def test_the_played_scheduler_places_and_says_what_the_real_one_does(
    control_plane: LocalCluster, api: ApiClient
) -> None:
    chance = random.Random(7)
    got = await compare(control_plane, api, nodes_of(chance), pods_of(chance, "played"), "played", each_in_its_way)
    assert len({reason for _, reason, _ in got.values()}) == 3


@pytest.mark.parametrize("names", [True, False])
async def test_the_played_scheduler_evicts_whom_the_real_one_does(
    control_plane: LocalCluster, api: ApiClient, names: bool
) -> None:
    where = f"played-{'names' if names else 'nodes'}"
    nodes = [fake_node(f"n{number}", "amd64", cpu="2") for number in range(4)]
    classes = [_priority_class(f"{where}-{number}", number * 10) for number in range(10)]
    residents = [
        pod(
            f"on-n{number}-{part}",
            "app:1",
            namespace=where,
            cpu="1",
            spec={"nodeName": f"n{number}", "priorityClassName": f"{where}-{number + 4 * part}"},
        )
        for number in range(4)
        for part in (0, 1)
    ]
    urgent = pod("urgent", "app:1", namespace=where, cpu="1", spec={"priorityClassName": f"{where}-9"})
    objects = [*classes, *nodes]
    config = ExtenderConfig(node_cache_capable=names)
    got = await compare(control_plane, api, objects, [*residents, urgent], where, not_on_the_cheapest, config)
    assert got["urgent"] == ("n1", "", "")
    assert sorted({each["metadata"]["name"] for each in residents} - got.keys()) == ["on-n1-0"]
