"""Writes what the image is made of: `python -m tools.release.bill_of_materials FILE` makes a CycloneDX document.

It has a component for each distribution of `requirements.txt` that an image for Linux gets, with its version, licence,
the hashes of its files that pip accepts, and what it depends on. Licences and dependencies are those that the
distributions state that are installed here. The same requirements give the same bytes.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import metadata, requires
from pathlib import Path
from uuid import UUID

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

import extender
from tools.release.pythons import PROJECT
from tools.release.requirement_pins import RequirementPin, image_environment, read_pins

OURS = "multiarch-extender"


def make_bill(project: Path = PROJECT) -> Bom:
    """Returns the bill of the requirements. Its time is SOURCE_DATE_EPOCH, or the epoch itself."""
    ours = _component(OURS, extender.__version__, ComponentType.APPLICATION)
    pins = {canonicalize_name(pin.name): pin for pin in read_pins(project)}
    components = {name: _pinned_component(pin) for name, pin in pins.items()}
    bill = Bom(components=components.values())
    bill.metadata.component = ours
    bill.metadata.timestamp = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), UTC)
    bill.serial_number = UUID(bytes=sha256((project / "requirements.txt").read_bytes()).digest()[:16], version=4)
    bill.register_dependency(ours, [components[name] for name in _needed(OURS) if name in components])
    for name, component in components.items():
        bill.register_dependency(component, [components[each] for each in _needed(name) if each in components])
    return bill


def _pinned_component(pin: RequirementPin) -> Component:
    component = _component(pin.name, pin.version, ComponentType.LIBRARY)
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=each) for each in pin.hashes]
    where = XsUri(f"pkg:pypi/{pin.name}@{pin.version}")
    component.external_references.add(
        ExternalReference(type=ExternalReferenceType.DISTRIBUTION, url=where, hashes=hashes)
    )
    return component


def _component(name: str, version: str, kind: ComponentType) -> Component:
    reference = f"{name}=={version}"
    address = PackageURL("pypi", None, name, version)
    return Component(name=name, version=version, type=kind, purl=address, bom_ref=reference, licenses=_licenses(name))


def _licenses(name: str) -> Iterator[License]:
    """Yields what the installed distribution states: an SPDX expression, else its classifiers or free words."""
    stated = metadata(name)
    make = LicenseFactory()
    if expressions := stated.get_all("License-Expression", []):
        yield make.make_from_string(expressions[0])
        return
    names = [each.rpartition(" :: ")[2] for each in stated.get_all("Classifier", []) if each.startswith("License :: ")]
    for each in names or stated.get_all("License", []):
        yield make.make_with_name(each.partition("\n")[0])


def _needed(name: str) -> Iterator[NormalizedName]:
    """Yields what the installed distribution requires in the image, by its usual name."""
    for each in requires(name) or ():
        requirement = Requirement(each)
        if requirement.marker is None or requirement.marker.evaluate(image_environment()):
            yield canonicalize_name(requirement.name)


def render(bill: Bom) -> str:
    """Returns the bill as JSON of CycloneDX 1.6."""
    return JsonV1Dot6(bill).output_as_string(indent=2) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Writes the file, and says how much is in it."""
    (file,) = arguments
    bill = make_bill()
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Path(file).write_text(render(bill))
    print(f"{file}: {len(bill.components)} components")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
