"""What the libraries of nodes say, which are compared with what is asked here."""

from typing import Any

from extender.errors import AddressRefused
from extender.images.reference import ImageReference
from extender.registry.routes import Routes

DIGEST = f"sha256:{'d' * 64}"


def candidates(routes: Routes, reference: ImageReference) -> list[dict[str, Any]] | None:
    try:
        return [
            {"reference": str(ImageReference(each.name, each.repository, reference.tag, reference.digest)),
             "insecure": each.plain_root is not None, "blocked": each.not_asked != "", "namespace": each.namespace}
            for each in routes.endpoints_for(reference)
        ]  # fmt: skip
    except AddressRefused:
        return None
