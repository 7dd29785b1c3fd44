"""Images in Debian's docker-registry, from `docker push`'s requests to filter, scores and patched pods."""

import base64
import json
from pathlib import Path

import bcrypt
import pytest

from testbed.debian_registry import DebianRegistry
from testbed.images import DOCKER, OCI, Family, build_index, build_manifest
from tests.integration.conftest import StartRegistry
from tests.integration.service.caller import AMD64, ARM64, Caller, kept, pod, with_nodes
from tests.integration.service.conftest import StartService

BOTH = [AMD64, ARM64]


async def judge(caller: Caller, image: str) -> tuple[list[str], list[str], dict[str, int]]:
    """Tolerations added, nodes kept and scores for a pod of one image."""
    created = pod(image)
    review = await caller.review(created)
    tolerations = [
        item["key"]
        for operation in review["patch"]
        if "tolerations" in operation["path"]
        for item in operation["value"]
    ]
    filtered = await caller.filter(with_nodes(created))
    assert filtered["Error"] == ""
    return tolerations, kept(filtered), await caller.prioritize(with_nodes(created))


@pytest.mark.parametrize("family", [OCI, DOCKER], ids=["oci", "docker"])
async def test_each_kind_of_image_is_placed_where_it_runs(
    debian_registry: DebianRegistry, start_service: StartService, family: Family
) -> None:
    """Multi-arch, single-arch and attested images over plain HTTP."""
    repository = f"service/{family.manifest.count('docker')}"
    host = debian_registry.host
    debian_registry.push(f"{repository}/multi", "1", build_index(BOTH, family=family))
    debian_registry.push(f"{repository}/amd", "1", build_manifest(AMD64, family))
    debian_registry.push(f"{repository}/arm", "1", build_manifest(ARM64, family))
    attested = debian_registry.push(f"{repository}/attested", "1", build_index([AMD64], attested=True, family=family))
    caller = await start_service(plain_http=host)
    pool = ["kubernetes.io/arch", "arch"]
    assert await judge(caller, f"{host}/{repository}/multi:1") == (pool, ["a", "b", "c", "d"], {"b": 10, "d": 10})
    assert await judge(caller, f"{host}/{repository}/amd:1") == ([], ["a", "c"], {})
    assert await judge(caller, f"{host}/{repository}/arm:1") == (pool, ["b", "d"], {})
    assert await judge(caller, f"{host}/{repository}/attested@{attested}") == ([], ["a", "c"], {})


async def test_registry_with_logins(
    start_debian_registry: StartRegistry, start_service: StartService, tmp_path: Path
) -> None:
    """The Docker configuration's login is used; without it, or with a wrong one, the image is denied and so unknown."""
    (tmp_path / "htpasswd").write_text(f"ann:{bcrypt.hashpw(b'secret', bcrypt.gensalt(5)).decode()}\n")
    registry = start_debian_registry(auth={"htpasswd": {"realm": "test", "path": str(tmp_path / "htpasswd")}})
    registry.push("service/app", "1", build_index(BOTH), login="ann:secret")
    image = f"{registry.host}/service/app:1"

    def login(name: str, text: str) -> str:
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps({"auths": {registry.host: {"auth": base64.b64encode(text.encode()).decode()}}}))
        return f"registry.docker_config={file}"

    right = await start_service(login("right", "ann:secret"), plain_http=registry.host)
    assert (await judge(right, image))[1:] == (["a", "b", "c", "d"], {"b": 10, "d": 10})
    for settings in ([login("wrong", "ann:guess")], []):
        denied = await start_service(*settings, plain_http=registry.host)
        assert await judge(denied, image) == ([], ["a", "b", "c", "d"], {})
        strict = await start_service("scheduler.unknown=retry", *settings, plain_http=registry.host)
        assert "denied" in (await strict.filter(with_nodes(pod(image))))["Error"]
