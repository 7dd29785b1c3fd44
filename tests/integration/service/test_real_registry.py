"""Images in Debian's docker-registry, from `docker push`'s requests to filter, scores and patched pods."""

import base64
import json
import ssl
from pathlib import Path

import bcrypt
import pytest
import trustme

from testbed.debian_registry import DebianRegistry
from testbed.images import DOCKER, OCI, Family, build_index, build_manifest
from tests.integration.conftest import StartRegistry
from tests.integration.service.caller import AMD64, ARM64, Caller, changes_of, kept, pod, with_nodes
from tests.integration.service.conftest import StartService
from tests.unit.cli.commands import run

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


async def test_mixed_pod_runs_only_where_all_its_images_do(
    debian_registry: DebianRegistry, start_service: StartService
) -> None:
    """A multi-arch app beside an amd64-only sidecar is an amd64 pod, and the sidecar is to blame."""
    host = debian_registry.host
    debian_registry.push("service/app", "1", build_index(BOTH))
    debian_registry.push("service/sidecar", "1", build_manifest(AMD64))
    caller = await start_service(plain_http=host)
    created = pod(f"{host}/service/app:1", f"{host}/service/sidecar:1")
    result = await caller.filter(with_nodes(created))
    reason = f"image {host}/service/sidecar:1 is built only for linux/amd64"
    assert result["FailedAndUnresolvableNodes"] == {"b": reason, "d": reason}
    assert await caller.prioritize(with_nodes(created)) == {}
    selector = {"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux"}
    assert changes_of(await caller.review(created)) == [{"op": "add", "path": "/spec/nodeSelector", "value": selector}]


async def test_registry_with_tls_of_its_own_authority(
    start_debian_registry: StartRegistry, start_service: StartService, tmp_path: Path
) -> None:
    """`registry.ca_files` is what makes a private authority trusted; without it the image is unknown, not guessed."""
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1")
    leaf.private_key_pem.write_to_path(tmp_path / "key.pem")
    leaf.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    registry = start_debian_registry(
        http={"tls": {"certificate": str(tmp_path / "cert.pem"), "key": str(tmp_path / "key.pem")}}
    )
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    registry.push("service/app", "1", build_manifest(AMD64), tls=context)
    image = f"{registry.host}/service/app:1"
    allow = f"registry.allow=['{registry.host}']"
    trusting = await start_service(f"registry.ca_files=['{tmp_path / 'ca.pem'}']", allow)
    assert await judge(trusting, image) == ([], ["a", "c"], {})
    doubting = await start_service(allow)
    error = (await doubting.filter(with_nodes(pod(image))))["Error"]
    assert image in error
    assert "unavailable" in error


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


async def test_inspect_agrees_with_the_service(debian_registry: DebianRegistry) -> None:
    """The command sees in the real registry what the verbs decide by."""
    host = debian_registry.host
    multi = debian_registry.push("inspect/multi", "1", build_index(BOTH, attested=True))
    debian_registry.push("inspect/arm", "1", build_manifest(ARM64, DOCKER))
    code, out, _ = await run(
        "inspect", f"{host}/inspect/multi:1", f"{host}/inspect/arm:1", "--output", "json", "--require", ARM64,
        "--set", f"registry.plain_http=['{host}']", "--set", f"registry.allow=['{host}']",
    )  # fmt: skip
    assert code == 0
    first, second = json.loads(out)
    assert (first["digest"], first["kind"], first["media_type"]) == (multi, "index", OCI.index)
    assert [item["platform"] for item in first["platforms"]] == BOTH
    assert len(first["skipped"]) == len(BOTH)
    assert [item["platform"] for item in second["platforms"]] == [ARM64]
    assert (second["kind"], second["platforms"][0]["digest"]) == ("manifest", second["digest"])
