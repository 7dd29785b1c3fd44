"""Calls the service as kube-scheduler and kube-apiserver do, with documents as Go encodes them."""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from extender.service.compose import Service
from testbed.eventually import eventually
from tests.integration.cluster.api_server import ApiServer

Json = dict[str, Any]
AMD64, ARM64 = "linux/amd64", "linux/arm64"


class Caller:
    """Calls one service, and asserts that each answer is a 200 with a JSON document."""

    def __init__(self, session: aiohttp.ClientSession, service: Service) -> None:
        self.session = session
        self.service = service

    async def filter(self, arguments: Json) -> Json:
        answer: Json = await self.post(f"{self.service.scheduler_url}/scheduler/filter", arguments, dict)
        return answer

    async def prioritize(self, arguments: Json) -> dict[str, int]:
        scores = await self.post(f"{self.service.scheduler_url}/scheduler/prioritize", arguments, list)
        assert all(isinstance(item["Score"], int) and set(item) == {"Host", "Score"} for item in scores)
        return {item["Host"]: item["Score"] for item in scores}

    async def preempt(self, arguments: Json) -> Json:
        answer = await self.post(f"{self.service.scheduler_url}/scheduler/preempt", arguments, dict)
        assert set(answer) == {"NodeNameToMetaVictims"}
        return answer["NodeNameToMetaVictims"]  # type: ignore[no-any-return]  # JSON

    async def review(self, created: Json, **request: object) -> Json:
        """Returns the response of an AdmissionReview with its `patch` decoded, [] if there is none."""
        return await self.review_at("/admission/pods", created, **request)

    async def review_at(self, path: str, created: Json, /, **request: object) -> Json:
        document = review_of(created, **request)
        answer = await self.post(f"{self.service.admission_url}{path}", document, dict)
        assert (answer["apiVersion"], answer["kind"]) == (document["apiVersion"], document["kind"])
        response: Json = answer["response"]
        assert (response["uid"], response["allowed"]) == (document["request"]["uid"], True)
        assert ("patch" in response) == ("patchType" in response)
        return response | {"patch": msgspec.json.decode(base64.b64decode(response.get("patch", "")) or b"[]")}

    async def metric(self, series: str) -> float:
        """Returns a sample of /metrics by its full name with labels."""
        async with self.session.get(f"{self.service.operations_url}/metrics") as response:
            lines = (await response.text()).splitlines()
        return float(next(line for line in lines if line.startswith(f"{series} ")).split()[-1])

    @asynccontextmanager
    async def growth(self, *series: str) -> AsyncIterator[list[float]]:
        """Fills the list with how much each series has grown in the context."""
        before, grown = [await self.metric(name) for name in series], list[float]()
        yield grown
        grown += [await self.metric(name) - old for name, old in zip(series, before, strict=True)]

    async def checks(self, path: str) -> tuple[int, dict[str, str]]:
        """The status of /livez or /readyz, and the mark of each check."""
        async with self.session.get(f"{self.service.operations_url}{path}?verbose") as response:
            *lines, _ = (await response.text()).splitlines()
            return response.status, {line[3:].split()[0]: line[:3] for line in lines}

    async def until_ready(self) -> dict[str, str]:
        found = await eventually(lambda: self.checks("/readyz"), lambda found: found[0] == 200)
        return found[1]

    async def post(self, url: str, document: Json, kind: type) -> Any:
        """Posts the document and returns the JSON document of the answer."""
        async with self.session.post(url, data=msgspec.json.encode(document)) as response:
            body = await response.read()
            assert response.status == 200, body
            assert response.headers["Content-Length"] == str(len(body))
        return msgspec.json.decode(body, type=kind)


def changes_of(review: Json) -> list[Json]:
    """Returns the operations of a review's patch that change the pod's spec."""
    return [operation for operation in review["patch"] if operation["path"].startswith("/spec/")]


def pod(*images: str, **metadata: object) -> Json:
    containers = [{"name": f"c{number}", "image": image} for number, image in enumerate(images)]
    return {
        "metadata": {"name": "p", "namespace": "shop", "uid": "uid-1"} | metadata,
        "spec": {"containers": containers},
    }


def node(name: str, architecture: str, **fields: object) -> Json:
    return {
        "metadata": {"name": name},
        "status": {"nodeInfo": {"architecture": architecture, "operatingSystem": "linux"}},
    } | fields


NODES = [node("a", "amd64"), node("b", "arm64"), node("c", "amd64"), node("d", "arm64")]


def with_nodes(created: Json, nodes: list[Json] | None = None) -> Json:
    return {"Pod": created, "Nodes": {"metadata": {}, "items": NODES if nodes is None else nodes}, "NodeNames": None}


def with_names(created: Json, names: list[str] | None = None) -> Json:
    return {"Pod": created, "Nodes": None, "NodeNames": ["a", "b", "c", "d"] if names is None else names}


def victims(created: Json, *, whole: bool = False) -> Json:
    """A preempt request with candidates on both architectures, one of them without victims."""
    found: Json = {"metadata": {"uid": "v"}, "spec": {}} if whole else {"UID": "v"}
    some, none = ({"Pods": pods, "NumPDBViolations": len(pods or ())} for pods in ([found], None if whole else []))
    by_node = {"a": some, "b": some, "c": none}
    return {
        "Pod": created,
        "NodeNameToVictims": by_node if whole else None,
        "NodeNameToMetaVictims": None if whole else by_node,
    }


def kept(result: Json) -> list[str]:
    """Returns the names of the nodes that pass the filter, in either form of the answer."""
    if result["NodeNames"] is not None:
        return list(result["NodeNames"])
    return [item["metadata"]["name"] for item in result["Nodes"]["items"]]


def review_of(created: Json, **request: object) -> Json:
    """Returns the AdmissionReview of the pod's creation; `request` overrides fields of its request."""
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


def write_pull_secret(api: ApiServer, host: str) -> None:
    """The secret `pull` in the namespace `default`, which opens the registry's images to ann."""
    login = {"auths": {host: {"auth": base64.b64encode(b"ann:secret").decode()}}}
    api.put(
        "/api/v1/namespaces/default/secrets",
        {
            "metadata": {"name": "pull", "namespace": "default"},
            "type": "kubernetes.io/dockerconfigjson",
            "data": {".dockerconfigjson": base64.b64encode(json.dumps(login).encode()).decode()},
        },
    )
