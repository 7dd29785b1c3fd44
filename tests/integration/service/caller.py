"""Plays the service's callers, with the documents that Go writes."""

import base64
from typing import Any

import aiohttp
import msgspec

from extender.service.process import Service

Json = dict[str, Any]
AMD64, ARM64 = "linux/amd64", "linux/arm64"


class Caller:
    """Asks one service, and insists on a 200 with a JSON document."""

    def __init__(self, session: aiohttp.ClientSession, service: Service) -> None:
        self.session = session
        self.service = service

    async def filter(self, arguments: Json) -> Json:
        """ExtenderFilterResult."""
        answer: Json = await self.post(f"{self.service.scheduler_url}/scheduler/filter", arguments, dict)
        return answer

    async def prioritize(self, arguments: Json) -> dict[str, int]:
        """Scores by host."""
        scores = await self.post(f"{self.service.scheduler_url}/scheduler/prioritize", arguments, list)
        assert all(isinstance(item["Score"], int) and set(item) == {"Host", "Score"} for item in scores)
        return {item["Host"]: item["Score"] for item in scores}

    async def preempt(self, arguments: Json) -> Json:
        """NodeNameToMetaVictims."""
        answer = await self.post(f"{self.service.scheduler_url}/scheduler/preempt", arguments, dict)
        assert set(answer) == {"NodeNameToMetaVictims"}
        return answer["NodeNameToMetaVictims"]  # type: ignore[no-any-return]  # JSON

    async def review(self, created: Json, **request: object) -> Json:
        """The response of an AdmissionReview; its `patch` decoded, [] where there is none."""
        document = review_of(created, **request)
        answer = await self.post(f"{self.service.admission_url}/admission/pods", document, dict)
        assert (answer["apiVersion"], answer["kind"]) == (document["apiVersion"], document["kind"])
        response: Json = answer["response"]
        assert (response["uid"], response["allowed"]) == (document["request"]["uid"], True)
        assert ("patch" in response) == ("patchType" in response)
        return response | {"patch": msgspec.json.decode(base64.b64decode(response.get("patch", "")) or b"[]")}

    async def metric(self, series: str) -> float:
        """A sample of /metrics by its full name with labels."""
        async with self.session.get(f"{self.service.operations_url}/metrics") as response:
            lines = (await response.text()).splitlines()
        return float(next(line for line in lines if line.startswith(f"{series} ")).split()[-1])

    async def post(self, url: str, document: Json, kind: type) -> Any:
        """The JSON document that answers."""
        async with self.session.post(url, data=msgspec.json.encode(document)) as response:
            body = await response.read()
            assert response.status == 200, body
            assert response.headers["Content-Length"] == str(len(body))
        return msgspec.json.decode(body, type=kind)


def pod(*images: str, **metadata: object) -> Json:
    """A pod of these containers."""
    containers = [{"name": f"c{number}", "image": image} for number, image in enumerate(images)]
    return {
        "metadata": {"name": "p", "namespace": "shop", "uid": "uid-1"} | metadata,
        "spec": {"containers": containers},
    }


def node(name: str, architecture: str, **fields: object) -> Json:
    """A node of linux."""
    return {
        "metadata": {"name": name},
        "status": {"nodeInfo": {"architecture": architecture, "operatingSystem": "linux"}},
    } | fields


NODES = [node("a", "amd64"), node("b", "arm64"), node("c", "amd64"), node("d", "arm64")]


def with_nodes(created: Json, nodes: list[Json] | None = None) -> Json:
    """ExtenderArgs of whole nodes."""
    return {"Pod": created, "Nodes": {"metadata": {}, "items": NODES if nodes is None else nodes}, "NodeNames": None}


def with_names(created: Json, names: list[str] | None = None) -> Json:
    """ExtenderArgs of node names."""
    return {"Pod": created, "Nodes": None, "NodeNames": ["a", "b", "c", "d"] if names is None else names}


def kept(result: Json) -> list[str]:
    """The names that a filter answer keeps, in either form."""
    if result["NodeNames"] is not None:
        return list(result["NodeNames"])
    return [item["metadata"]["name"] for item in result["Nodes"]["items"]]


def review_of(created: Json, **request: object) -> Json:
    """The AdmissionReview of the pod's creation, with other fields of the request where given."""
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "r-1",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "operation": "CREATE",
            "namespace": "shop",
            "object": {"apiVersion": "v1", "kind": "Pod", **created},
        }
        | request,
    }
