"""Images that a real node can run: layers with the files given, under the platforms given."""

from collections.abc import Mapping, Sequence

import msgspec

from extender.images.reference import digest_of
from testbed.images import OCI, Bundle, Family, join_index, make_image
from testbed.packed_layers import Put, archive_of, gzipped

PROGRAM = "/hello"


def build_image(
    platform: str, files: Mapping[str, bytes], family: Family = OCI, *, entrypoint: Sequence[str] = (PROGRAM,)
) -> Bundle:
    """A single image whose config says `platform`, with these executable files."""
    return make_image(platform, [gzipped(_executable(files))], family, Entrypoint=list(entrypoint))


def build_hello(architecture: str, hello: Mapping[str, bytes], family: Family = OCI) -> Bundle:
    """A single image of the program for that architecture."""
    return build_image(f"linux/{architecture}", {PROGRAM: hello[architecture]}, family)


def build_hello_index(
    architectures: Sequence[str], hello: Mapping[str, bytes], *, family: Family = OCI, attested: bool = False
) -> Bundle:
    """An index of the program for each of those architectures."""
    images = [(f"linux/{architecture}", build_hello(architecture, hello, family)) for architecture in architectures]
    return join_index(images, attested=attested, family=family)


def build_pause(architectures: Sequence[str], hello: Mapping[str, bytes]) -> Bundle:
    """An index of the image that every pod has a container of, for each of those architectures."""
    images = [
        (
            f"linux/{architecture}",
            build_image(f"linux/{architecture}", {"/pause": hello[architecture]}, entrypoint=["/pause"]),
        )
        for architecture in architectures
    ]
    return join_index(images)


def image_archive(images: Mapping[str, Bundle]) -> bytes:
    """A tar archive of the images under these names, as `docker save` and `ctr images export` write it."""
    files: dict[str, bytes] = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}'}
    entries: list[dict[str, object]] = []
    for name, image in images.items():
        parts = [*image.blobs, *(each.body for each in image.manifests)]
        files |= {f"blobs/{digest_of(part).replace(':', '/')}": part for part in parts}
        root = image.manifests[-1]
        entry = {"mediaType": root.media_type, "digest": root.digest, "size": len(root.body)}
        entries.append({**entry, "annotations": {"io.containerd.image.name": name}})
    files["index.json"] = msgspec.json.encode({"schemaVersion": 2, "manifests": entries})
    return archive_of(_executable(files))


def _executable(files: Mapping[str, bytes]) -> list[Put]:
    return [Put(path.lstrip("/"), content) for path, content in files.items()]
