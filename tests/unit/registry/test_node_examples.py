"""Each example of where nodes ask: who is asked for what, in which order."""

from pathlib import Path

import msgspec
import pytest

from extender.errors import RegistryError
from extender.images.reference import parse_reference
from extender.kubernetes.openshift_v1 import MirrorObjects
from extender.registry.endpoint import EndpointSource
from extender.registry.endpoint_tls import RegistryTrust
from extender.registry.mirror_files import MirrorFiles
from extender.registry.openshift import OpenShiftMirrors
from tests.unit.registry.node_examples import CRIO, K3S, OPENSHIFT, Example, OpenShiftExample


def asked_of(mirrors: EndpointSource, image: str) -> tuple[str, ...]:
    """Who is asked while nobody has the image. A digest overrides the tag."""
    reference = parse_reference(image)
    reference = reference.with_digest(reference.digest) if reference.digest else reference
    try:
        endpoints = mirrors.endpoints_for(reference)
    except RegistryError:
        return ()
    urls = (each.url_of("manifests/x") for each in endpoints if not each.not_asked)
    return tuple(
        ("" if url.scheme == "https" else "http://")
        + f"{url.host_port_subcomponent}/{url.path.removeprefix('/v2/').removesuffix('/manifests/x').removeprefix('/')}"
        + (f"?{url.query_string}" if url.query_string else "")
        for url in urls
    )


def write_crio(folder: Path, example: Example) -> MirrorFiles:
    main, *drop_ins = example.files
    (folder / "registries.conf").write_text(main)
    (folder / "registries.conf.d").mkdir()
    for number, drop_in in enumerate(drop_ins):
        (folder / "registries.conf.d" / f"{number}.conf").write_text(drop_in)
    return MirrorFiles(str(folder / "registries.conf"))


@pytest.mark.parametrize("example", CRIO, ids=lambda example: example.name)
def test_crio_example(tmp_path: Path, example: Example) -> None:
    assert asked_of(write_crio(tmp_path, example), example.image) == example.asked


@pytest.mark.parametrize("example", K3S, ids=lambda example: example.name)
def test_k3s_example(tmp_path: Path, example: Example) -> None:
    (tmp_path / "registries.yaml").write_text(example.files[0])
    assert asked_of(MirrorFiles(str(tmp_path / "registries.yaml")), example.image) == example.asked


@pytest.mark.parametrize("example", OPENSHIFT, ids=lambda example: example.name)
def test_openshift_example(example: OpenShiftExample) -> None:
    """In the order in which CRI-O asks by what the machine-config operator writes."""
    mirrors = OpenShiftMirrors(RegistryTrust())
    mirrors.update(msgspec.json.decode(example.objects, type=MirrorObjects))
    assert asked_of(mirrors, example.image) == example.asked
