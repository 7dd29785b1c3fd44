"""The bill of materials states what the image gets, in the form that its schema asks for."""

import re
from pathlib import Path

import msgspec
import pytest

import extender
from tools.release.pythons import PROJECT
from tools.release.requirement_pins import read_pins
from tools.release.wheels import MACHINES, platform_tags


def made_bill() -> str:
    """The bill of this checkout."""
    from tools.release.bill_of_materials import make_bill, render  # late, as it takes a while of every collection

    return render(make_bill())


@pytest.fixture(scope="module")
def bill() -> str:
    return made_bill()


@pytest.mark.slow
def test_the_bill_is_valid_by_the_strict_schema(bill: str) -> None:
    """CycloneDX 1.6, which scanners read; a word that the schema does not know is an error."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator  # late, as it takes two seconds of every collection

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill) is None


def test_the_bill_has_every_pin_with_its_hashes_and_licence(bill: str) -> None:
    """And the package itself, which depends on those that pyproject.toml names."""
    read = msgspec.json.decode(bill)
    by_name = {each["name"]: each for each in read["components"]}
    pins = list(read_pins())
    assert {(name, each["version"]) for name, each in by_name.items()} == {(pin.name, pin.version) for pin in pins}
    for pin in pins:
        (files,) = by_name[pin.name]["externalReferences"]
        assert {each["content"] for each in files["hashes"]} == set(pin.hashes)
    assert [name for name, each in by_name.items() if not each.get("licenses")] == []
    ours = read["metadata"]["component"]
    assert (ours["name"], ours["version"]) == ("multiarch-extender", extender.__version__)
    needs = {each["ref"]: each.get("dependsOn", []) for each in read["dependencies"]}
    assert {"aiohttp", "msgspec", "uvloop"} <= {each.partition("==")[0] for each in needs[ours["bom-ref"]]}
    assert any(each.startswith("yarl==") for each in needs[by_name["aiohttp"]["bom-ref"]])


def test_the_same_requirements_give_the_same_bill(bill: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte for byte, whatever the time; SOURCE_DATE_EPOCH sets the time that it states."""
    assert made_bill() == bill
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1600000000")
    assert msgspec.json.decode(made_bill())["metadata"]["timestamp"] == "2020-09-13T12:26:40+00:00"


def test_pins_for_other_systems_are_left_out(tmp_path: Path) -> None:
    """Their conditions are judged by the image's interpreter and not by the one that runs this."""
    hashes = f"    --hash=sha256:{'0' * 64}"
    (tmp_path / "requirements.txt").write_text(
        f"here==1.0 \\\n{hashes} \\\n    --hash=sha256:{'1' * 64}\n    # via other\n"
        f"windows==2.0 ; sys_platform == 'win32' \\\n{hashes}\n"
        f"old==3.0 ; python_full_version < '3.13' \\\n{hashes}\n"
    )
    (tmp_path / "Dockerfile").write_text("FROM registry.example.com/python:3.13-slim AS build\n")
    (pin,) = read_pins(tmp_path)
    assert (pin.requirement, pin.hashes) == ("here==1.0", ("0" * 64, "1" * 64))


def test_every_pin_of_the_project_is_read() -> None:
    """None is passed over because its line is written in another way."""
    lines = re.findall(r"^[a-z].*==", (PROJECT / "requirements.txt").read_text(), re.MULTILINE)
    conditional = re.findall(r"^[a-z].*== *[^ ]+ ;", (PROJECT / "requirements.txt").read_text(), re.MULTILINE)
    assert len(lines) - len(conditional) <= len(list(read_pins())) <= len(lines)


def test_wheels_are_asked_for_by_every_tag_up_to_the_c_library_of_the_base() -> None:
    """Not by newer ones, which would install and not load."""
    assert set(MACHINES) == {"linux/amd64", "linux/arm64"}
    tags = platform_tags("aarch64")
    assert tags[0] == "manylinux_2_36_aarch64"
    assert {"manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64"} <= set(tags)
