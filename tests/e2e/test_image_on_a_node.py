"""The chart as helm installs it, with the image that the Dockerfile makes, in pods of a real node.

The kubelet pulls the image from a real registry and runs it as the chart says: by which user, with which files and
rights, with what memory, probed through the pods' network. The API server calls the Service.
"""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from extender import __version__
from testbed.api_client import ApiClient, ApiError
from testbed.binaries import Binaries
from testbed.debian_registry import DebianRegistry, find_docker_registry
from testbed.eventually import eventually
from testbed.image_builder import Image, ImageBuilder
from testbed.nodes.images import build_image
from testbed.objects import KubernetesObject, kept_to, pod
from tests.e2e.installed_chart import OURS
from tests.e2e.node_installation import Installation, InstallationPrograms, is_ready, open_node_installation
from tests.e2e.policies import GATE, dry_run, gates_of
from tests.e2e.world import refusal_of

pytestmark = pytest.mark.e2e

SECONDS = 60.0
ANYBODY = 65532


def users_of(cgroup: str) -> list[str]:
    """The user, the group and the effective capabilities of each service that runs below that cgroup."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if cgroup in (process / "cgroup").read_text() and b"\0serve\0" in (process / "cmdline").read_bytes():
                status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
                found.append(f"{status['Uid'].split()[1]}:{status['Gid'].split()[1]} {status['CapEff']}")
    return found


async def awaited(api: ApiClient, name: str, is_so: Callable[[KubernetesObject], bool]) -> KubernetesObject:
    return await api.wait_for("Pod", is_so, timeout_seconds=SECONDS, fieldSelector=f"metadata.name={name}")


@pytest.fixture
async def there(
    image: Image, builder: ImageBuilder, installation_programs: InstallationPrograms, tmp_path: Path
) -> AsyncIterator[Installation]:
    with DebianRegistry(find_docker_registry(), tmp_path) as registry:
        digest = builder.push("first", f"{registry.host}/multiarch-extender:{__version__}")
        async with open_node_installation(installation_programs, registry, tmp_path) as opened:
            yield opened._replace(digest=digest)


async def test_helm_installs_the_image_and_a_kubelet_runs_it_as_the_chart_says(there: Installation) -> None:
    """The webhook and the policy: `helm install` waits for a review that is answered, and `helm test` finds all well.

    A pod that is deleted is replaced. `helm uninstall` lets a held pod go before it removes what would have done so.
    """
    started = time.monotonic()
    await there.install({"policy": {"enabled": True}})
    seconds = time.monotonic() - started
    amd = there.image("amd")
    # On a busy machine the image is not known in the time that a review has.
    await eventually(
        lambda: dry_run(there.api, pod("p", amd)),
        lambda found: kept_to(found["spec"], "kubernetes.io/arch") == ["amd64"],
    )
    printed = await there.release.run("test", OURS, "--logs")
    assert "Phase:          Succeeded" in printed, printed
    assert "ok probe webhook" in printed, printed
    first, second = await there.pods("webhook")
    for each in (first, second):
        [container] = each["status"]["containerStatuses"]
        assert (container["ready"], container["restartCount"]) == (True, 0), await last_end(there.api, each)
        assert container["imageID"].endswith(there.digest)
    assert users_of(there.node.cgroup.name) == [f"{ANYBODY}:{ANYBODY} 0000000000000000"] * 2
    print(f"the image on a real node: reviews are answered {seconds:.1f} s after `helm install`")
    await there.api.delete("Pod", first["metadata"]["name"], OURS)
    pods = await eventually(lambda: there.pods("webhook"), lambda found: [*map(is_ready, found)] == [True, True])
    assert first["metadata"]["name"] not in {each["metadata"]["name"] for each in pods}
    await eventually(lambda: create_held(there))  # the replica that let pods go may be the one that was deleted
    await there.release.run("uninstall", OURS, "--wait")
    assert gates_of(await there.api.get("Pod", "held", "default")) == []
    assert await there.pods("webhook") == []


async def last_end(api: ApiClient, found: KubernetesObject) -> str:
    """How the container ended before it was started again, and what it said."""
    [container] = found["status"]["containerStatuses"]
    metadata = found["metadata"]
    with suppress(ApiError):
        return f"{container['lastState']} {await api.log(metadata['name'], metadata['namespace'], previous='true')}"
    return str(container)


async def create_held(there: Installation) -> bool:
    """Whether a new pod is held, of an image that is not there; one that is not is deleted."""
    made = await there.api.create(pod("held", there.image("pushed-later")))
    if gates_of(made) != [GATE]:
        await there.api.delete("Pod", "held", "default")
    return gates_of(made) == [GATE]


async def test_the_second_scheduler_schedules_from_its_pod(there: Installation, binaries: Binaries) -> None:
    """kube-scheduler and the service in one pod, of which the service is the sidecar; its verbs are on loopback."""
    files = {"/usr/local/bin/kube-scheduler": binaries.kube_scheduler.read_bytes()}
    version = (await there.api.request("GET", "/version"))["gitVersion"]
    there.images.registry.push("kube-scheduler", version, build_image("linux/amd64", files, entrypoint=["none"]))
    image = f"{there.images.registry.host}/kube-scheduler:{version}"
    modes = {"webhook": {"enabled": False}, "secondScheduler": {"enabled": True, "image": image}}
    await there.install(modes, replicas=1)
    [running] = await there.pods("second-scheduler")
    assert is_ready(running)
    chosen = {"schedulerName": "multiarch-scheduler"}
    for kind in ("amd", "arm"):
        await there.api.create(pod(kind, there.image(kind), spec=chosen))
    placed = await awaited(there.api, "amd", lambda found: "nodeName" in found["spec"])
    assert placed["spec"]["nodeName"] == there.node.name
    refused = await awaited(there.api, "arm", lambda found: bool(refusal_of(found)))
    assert there.image("arm") in refusal_of(refused)["message"]
    [running] = await there.pods("second-scheduler")
    found = [*running["status"]["initContainerStatuses"], *running["status"]["containerStatuses"]]
    assert [(each["name"], each["ready"], each["restartCount"]) for each in found] == [
        ("multiarch-extender", True, 0),
        ("kube-scheduler", True, 0),
    ]
