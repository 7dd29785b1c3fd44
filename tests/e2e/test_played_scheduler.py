"""The kube-scheduler that worlds play beside the real one: the same pods on the same nodes, and the same words.

Both ask an extender of the same answers. What pods and nodes have is drawn from a fixed seed.
"""

import asyncio
import random
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
from tests.worlds.plan import ExtenderConfig
from tests.worlds.scheduler import KubeScheduler
from tests.worlds.trace import Trace

pytestmark = pytest.mark.e2e

Json = dict[str, Any]
SPACE = "played"
NODES, PODS = 9, 60
ARCH, ZONE = "kubernetes.io/arch", "zone"
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


def pods_of(chance: random.Random) -> list[Json]:
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
        made.append(pod(f"p{number}", "app:1", namespace=SPACE, cpu=cpu, spec=spec))
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


class Answers:
    """An extender: each pod has its own kind of answer. `keys` are those of what it was asked, by verb."""

    def __init__(self) -> None:
        self.keys: dict[str, set[str]] = {}

    def give(self, verb: str, arguments: Json) -> Any:
        self.keys.setdefault(verb, set()).update(_paths(arguments, ("Pod", "Nodes")))
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
                refused = dict.fromkeys(names, "image app:1 is built only for linux/s390x")
                return {"NodeNames": [], "FailedAndUnresolvableNodes": refused}
            case 2:
                return {"NodeNames": names[:0], "FailedNodes": dict.fromkeys(names, "for now")}
            case 3:
                return {}
            case _:
                return {"NodeNames": names}


def _paths(value: Any, nested: tuple[str, ...]) -> set[str]:
    """The keys of the arguments, and those right below the nested ones."""
    below = {f"{key}.{each}" for key in nested if isinstance(value.get(key), dict) for each in value[key]}
    return {*value, *below}


def outcome(found: Json) -> tuple[str, str, str]:
    """Where the pod is, or why not: its node, reason and message."""
    [condition] = [each for each in found["status"]["conditions"] if each["type"] == "PodScheduled"]
    if condition["status"] == "True":
        return found["spec"]["nodeName"], "", ""
    return "", condition["reason"], condition["message"]


def played(nodes: list[Json], pods: list[Json], answers: Answers) -> dict[str, tuple[str, str, str]]:
    async def main(network: Network) -> dict[str, tuple[str, str, str]]:
        async def answer(request: Request) -> Response:
            verb = request.path.rpartition("/")[2]
            return Response(200, msgspec.json.encode(answers.give(verb, msgspec.json.decode(request.body))))

        serve_http(network, "10.0.1.1", 8880, answer)
        trace = Trace(network.loop.time)
        api = ApiServer(network, trace, random.Random(1))
        await api.create("Namespace", namespace(SPACE), user="admin")
        for node in nodes:
            await api.create("Node", node, user="admin")
        scheduler = KubeScheduler(
            network, api, trace, random.Random(1), extender=ExtenderConfig(), extender_url="http://10.0.1.1:8880"
        )
        running = asyncio.ensure_future(scheduler.run())
        for each in pods:
            await api.create("Pod", each, user="admin")
        await asyncio.sleep(5)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return {each["metadata"]["name"]: outcome(each) for each in api.list("Pod", SPACE)}

    return run_in_memory(main)


async def test_the_played_scheduler_places_and_says_what_the_real_one_does(
    control_plane: LocalCluster, api: ApiClient
) -> None:
    chance = random.Random(7)
    nodes, pods = nodes_of(chance), pods_of(chance)
    answers, expected_answers = Answers(), Answers()
    expected = await asyncio.to_thread(played, nodes, pods, expected_answers)

    async def answer(request: web.Request) -> web.Response:
        given = answers.give(request.match_info["verb"], msgspec.json.decode(await request.read()))
        return web.json_response(given)

    application = web.Application()
    application.router.add_post("/{verb}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    extender = {"urlPrefix": url, **_VERBS, "weight": 10, "nodeCacheCapable": True, "httpTimeout": "2s"}

    async def stored() -> list[Json]:
        return await api.list("Pod", SPACE)

    try:
        with running_scheduler(control_plane, {"extenders": [extender]}):
            await api.create(namespace(SPACE))
            await api.create_all(nodes)
            await api.create_all(pods)
            found = await eventually(
                stored, lambda all_pods: all(each["status"].get("conditions") for each in all_pods)
            )
    finally:
        await runner.cleanup()
    assert {each["metadata"]["name"]: outcome(each) for each in found} == expected
    assert answers.keys == expected_answers.keys
