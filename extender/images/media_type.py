"""The media types of manifests and configs. They are exact and case-sensitive.

Sources: distribution manifest-v2-2.md, OCI image-spec media-types.md.
"""

DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
SIGNED_SCHEMA1 = "application/vnd.docker.distribution.manifest.v1+prettyjws"

INDEXES = frozenset({DOCKER_LIST, OCI_INDEX})
MANIFESTS = frozenset({DOCKER_MANIFEST, OCI_MANIFEST})
SCHEMA1 = frozenset({"application/vnd.docker.distribution.manifest.v1+json", SIGNED_SCHEMA1})

# The Accept header of every manifest request. If a docker list is not accepted, distribution returns its linux/amd64
# child instead, which makes a multi-arch image look like an amd64 one (registry/handlers/manifests.go).
ACCEPTED = (DOCKER_LIST, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST)

IMAGE_CONFIGS = frozenset(
    {
        "application/vnd.docker.container.image.v1+json",
        "application/vnd.oci.image.config.v1+json",
    }
)
# Old registries replaced the config type of real images by these (distribution/distribution#1621); Docker accepts them.
LEGACY_CONFIGS = frozenset({"", "application/octet-stream", "application/json", "text/html"})
ATTESTATION = "application/vnd.docker.attestation.manifest.v1+json"


def media_type_of(content_type: str) -> str:
    """The media type in a Content-Type header, without its parameters; empty for an empty header."""
    return content_type.partition(";")[0].strip()
