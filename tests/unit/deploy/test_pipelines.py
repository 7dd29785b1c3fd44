"""The pipelines of this repository and the templates for others: what no linter of workflows knows."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.binaries import KUBERNETES
from tools.release.pythons import PROJECT, image_release, oldest_release

WORKFLOWS = tuple(sorted((PROJECT / ".github" / "workflows").glob("*.yml")))
TEMPLATES = PROJECT / "deploy" / "pipelines"
GITHUB = TEMPLATES / "github-workflow.yml"
GITLAB = TEMPLATES / "gitlab-ci.yml"
WRITES = {"write", "write-all"}

Document = dict[str, Any]


def read(path: Path) -> Document:
    """The file's content; YAML 1.1 takes the key `on` for true, which GitHub does not."""
    loaded: Document = yaml.safe_load(path.read_text().replace("\non:", '\n"on":'))
    return loaded


def test_every_supported_interpreter_and_kubernetes_is_checked() -> None:
    """Those that the package and the test bed name; `make ci` runs on the newest Kubernetes."""
    check, e2e = (read(PROJECT / ".github" / "workflows" / f"{name}.yml") for name in ("check", "e2e"))
    matrix = check["jobs"]["tests"]["strategy"]["matrix"]["python"]
    assert str(oldest_release()) in matrix
    for release in (str(oldest_release()), str(image_release())):  # `make ci` takes both
        assert release in check["jobs"]["ci"]["steps"][1]["with"]["python-version"].split()
    older = e2e["jobs"]["control-plane"]["strategy"]["matrix"]["kubernetes"]
    assert {*older, max(KUBERNETES)} == set(KUBERNETES)


def test_nothing_is_published_before_every_check_has_passed() -> None:
    """Each job that writes to somebody waits for both workflows, by itself or through those that it needs.

    The image is pushed by its digest, and has its name, as all else that is published, once the gate has run and
    scanned it.
    """
    jobs = read(PROJECT / ".github" / "workflows" / "release.yml")["jobs"]

    def awaited(name: str) -> set[str]:
        needs = jobs[name].get("needs", [])
        direct = {needs} if isinstance(needs, str) else set(needs)
        return direct.union(*(awaited(each) for each in direct))

    publishing = {
        name for name, job in jobs.items() if {"packages", "id-token", "contents"} & {
            right for right, level in job["permissions"].items() if level in WRITES
        }
    }  # fmt: skip
    assert publishing == {"pypi", "image", "tag", "chart", "publish"}
    for name in publishing:
        assert {"check", "e2e"} <= awaited(name), name
    for name in publishing - {"image"}:
        assert "gate" in awaited(name), name
    (build,) = (step for step in jobs["image"]["steps"] if step.get("id") == "build")
    assert "push-by-digest=true" in build["with"]["outputs"]
    assert "tags" not in build["with"]
    (scan,) = (step for step in jobs["gate"]["steps"] if step.get("uses", "").startswith("anchore/scan-action@"))
    assert scan["with"]["image"] == "${{ env.IMAGE }}@${{ needs.image.outputs.digest }}"


def test_make_targets_and_modules_that_pipelines_run_exist() -> None:
    """`make TARGET`, `python -m MODULE` and `bash FILE` of every step."""
    targets = set(re.findall(r"^([a-z0-9-]+):.*## ", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    text = "\n".join(path.read_text() for path in WORKFLOWS)
    assert set(re.findall(r"\bmake ([a-z0-9-]+)", text)) <= targets
    for module in set(re.findall(r"python -m ((?:testbed|tools)[\w.]+)", text)):
        assert (PROJECT / f"{module.replace('.', '/')}.py").exists()
    for file in re.findall(r"run: bash (\S+)", text):
        assert (PROJECT / file).exists()


@pytest.mark.parametrize("path", [GITHUB, GITLAB], ids=lambda path: path.name)
def test_the_templates_release_only_what_inspect_has_found_complete(path: Path) -> None:
    """Every platform that is built is required, by this release, before the name that others pull is given."""
    text = path.read_text()
    built = set(re.findall(r"[{ ](?:platform|PLATFORM): (linux/[\w/]+)", text))
    assert built == {"linux/amd64", "linux/arm64", "linux/arm/v7"}
    assert set(re.findall(r"--require (\S+)", text)) == built
    assert text.index("inspect\n" if path is GITHUB else "extender inspect ") < text.rindex("REF_")
