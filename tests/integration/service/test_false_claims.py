"""Images that claim platforms falsely, on the whole service: what it learns by looking inside."""

import pytest

from extender.cluster.views import NAMESPACES, NODES, PODS
from testbed.eventually import eventually
from testbed.images import join_index, make_image
from testbed.packed_layers import Put, gzipped
from tests.integration.cluster.api_server import namespace, node, owned, pod, told
from tests.integration.service.caller import AMD64, ARM64, Caller, kept, with_names
from tests.integration.service.caller import pod as created
from tests.integration.service.conftest import Cluster

AMD64_ELF = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\0\x3e\0" + bytes(44)


async def nodes_for(caller: Caller, image: str, in_namespace: str) -> list[str]:
    """The nodes that a pod of the namespace may go to, all if it is not known yet."""
    result = await caller.filter(with_names(created(image, namespace=in_namespace), ["amd", "arm"]))
    return sorted(kept(result)) if not result["Error"] else ["amd", "arm"]


@pytest.mark.usefixtures("simulated_time")
async def test_a_lie_is_found_in_the_background_and_told(cluster: Cluster) -> None:
    """Pods are kept off from then on, in every namespace, and the workload gets an event."""
    api, registry = cluster.api, cluster.registry
    for name in ("amd", "arm"):
        api.put(NODES.path, node(name, f"{name}64"))
    for name in ("default", "other"):
        api.put(NAMESPACES.path, namespace(name))
    layers = [gzipped([Put("app", AMD64_ELF)])]
    lying = join_index([(each, make_image(each, layers, Entrypoint=["/app"])) for each in (AMD64, ARM64)])
    registry.add("web", "1", lying)
    image = f"{registry.host}/web:1"
    api.put(PODS, owned(pod("web-1", image, "arm", "Running"), "StatefulSet", "web"))
    async with cluster.service("registry.verify=background", "drift.events=true", listen="127.0.0.1:0") as caller:
        await caller.until_ready()
        await caller.review(created(image), namespace="default")
        await eventually(lambda: told(api))
        assert await nodes_for(caller, image, "other") == ["amd"]
        assert await caller.metric('multiarch_images{state="refuted"}') == 1
    (event,) = told(api)
    assert (event["reason"], event["type"]) == ("ImageLiesAboutPlatform", "Warning")
    assert f"image {image} claims linux/arm64, but its /app is for x86-64" in event["message"]
