"""Thousands of random mirrors, and the same candidates as from the library that CRI-O reads `registries.conf` with."""

import json
import random
import subprocess
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from extender.errors import AddressRefused, ConfigError
from extender.images.reference import ImageReference, parse_reference
from extender.registry.endpoint import Routes
from extender.registry.registries_conf import read_registries_conf
from testbed.binaries import CONTAINERS_IMAGE, find_built

DIGEST = f"sha256:{'d' * 64}"
CONFIGURATIONS = 5_000
HOSTS = ["a.io", "b.a.io", "c.b.a.io", "docker.io", "e.com:5000", "localhost", "x.aio.io", "m1", "h.com"]
PATHS = ["", "/x", "/x/y", "/library", "/x/y/z", "/xy", "/", "//", "/X"]
PREFIXES = ["*.a.io", "*.b.a.io", "*.io", "*.com", "*.aio.io", "*.", "*.a.io/x", "*.e.com:5000", "*"]
PULLS = ["", "all", "digest-only", "tag-only", "some"]
NAMES = ["", "app", "x", "x/app", "x/y/z/app", "xy", "library/app"]


def candidates(routes: Routes, reference: ImageReference) -> list[dict[str, Any]] | None:
    try:
        return [
            {"reference": str(ImageReference(each.name, each.repository, reference.tag, reference.digest)),
             "insecure": each.plain_root is not None, "blocked": each.not_asked != "", "namespace": each.namespace}
            for each in routes.endpoints_for(reference)
        ]  # fmt: skip
    except AddressRefused:
        return None


def answers_of(questions: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The library's answers; the test is skipped where it is not built."""
    (name,) = CONTAINERS_IMAGE.programs
    program = find_built(CONTAINERS_IMAGE) / name
    if not program.exists():
        pytest.skip(f"the library is not built: python -m testbed.binaries {CONTAINERS_IMAGE.name}")
    asked = "\n".join(map(json.dumps, questions))
    done = subprocess.run([program], input=asked, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def table_of(chance: random.Random) -> str:
    def maybe(key: str, share: float, value: str | None = None) -> str:
        return f"{key} = {value or 'true'}\n" if chance.random() < share else ""

    def place() -> str:
        scheme = "https://" if chance.random() < 0.005 else ""
        return json.dumps(scheme + chance.choice(HOSTS) + chance.choice(PATHS))

    prefix = json.dumps(chance.choice(PREFIXES[:5] if chance.random() < 0.97 else PREFIXES))
    text = "[[registry]]\n"
    text += maybe("location", 0.9, place()) + maybe("prefix", 0.5, prefix if chance.random() < 0.4 else place())
    text += maybe("insecure", 0.15) + maybe("blocked", 0.15) + maybe("mirror-by-digest-only", 0.15)
    text += maybe("pull-from-mirror", 0.004, '"all"') + maybe("namespace-proxy", 0.05, '"docker.io"')
    for _ in range(chance.choice([0, 0, 1, 1, 2, 3])):
        pull = chance.choice(PULLS[:4] if chance.random() < 0.99 else PULLS)
        text += f"[[registry.mirror]]\nlocation = {place()}\n" + maybe("insecure", 0.2)
        text += maybe("pull-from-mirror", 0.2, json.dumps(pull)) + maybe("namespace-proxy", 0.05, '"quay.io"')
    return text


def file_of(chance: random.Random) -> str:
    head = ""
    if chance.random() < 0.3:
        searched = chance.sample(HOSTS, chance.choice([0, 1, 2])) + (["a.io/x"] if chance.random() < 0.02 else [])
        head += f"unqualified-search-registries = {json.dumps(searched)}\n"
    if chance.random() < 0.05:
        head += f"short-name-mode = {json.dumps(chance.choice(['enforcing', 'disabled', 'permissive', 'some']))}\n"
    tables = "".join(table_of(chance) for _ in range(chance.choice([0, 1, 2, 4])))
    aliases = ""
    if chance.random() < 0.3:
        names = chance.sample(["app", "x/app", "x", "a.io/x" if chance.random() < 0.05 else "y"], 2)
        targets = ["", "a.io/app", "docker.io/app", "localhost/x/app", "e.com:5000/y"]
        targets += ["plain/app", "a.io/app:1"] if chance.random() < 0.05 else []
        aliases = "[aliases]\n" + "".join(
            f"{json.dumps(name)} = {json.dumps(chance.choice(targets))}\n" for name in names
        )
    return head + tables + aliases


def question_of(seed: int) -> dict[str, Any]:
    """Files, names with a tag or a digest, and names without a registry."""
    chance = random.Random(seed)
    names = []
    for _ in range(8):
        name = f"{chance.choice([*HOSTS[:-2], 'z.io', 'io', 'q.aio.io'])}/{chance.choice(NAMES[1:])}"
        names.append(name + chance.choice([":1", f"@{DIGEST}"]))
    return {
        "main": file_of(chance),
        "drop_ins": [file_of(chance) for _ in range(chance.choice([0, 0, 1, 2]))],
        "names": [str(parse_reference(name)) for name in names],
        "short": [
            f"{name}{chance.choice([':1', f'@{DIGEST}'])}" for name in chance.sample(["app", "x/app", "x", "y"], 2)
        ],
        "mode": chance.choice(["enforcing", "disabled"]),
    }


def our_answer(question: dict[str, Any]) -> dict[str, Any]:
    texts = [question["main"], *question["drop_ins"]]
    try:
        routes = read_registries_conf((f"{number}", text.encode()) for number, text in enumerate(texts))
    except ConfigError as exc:
        return {"error": str(exc)}
    return {
        "error": "",
        "names": [candidates(routes, parse_reference(name)) for name in question["names"]],
        "short": [full_names(routes, name, question["mode"]) for name in question["short"]],
    }


def full_names(routes: Routes, name: str, mode: str) -> list[str] | None:
    """The names that are tried where the nodes' own setting is `mode`; None: nobody is asked."""
    path, mark, rest = name.partition("@") if "@" in name else name.partition(":")
    short = ImageReference("", path, rest if mark == ":" else "", rest if mark == "@" else "")
    routes = msgspec.structs.replace(routes, searches_all=mode == "disabled")
    try:
        return [str(each) for each in routes.full_names_of(short)]
    except AddressRefused:
        return None


@pytest.mark.slow
def test_library_of_crio_asks_the_same() -> None:
    """The same files are invalid, and the others give the same candidates and the same full names, in order."""
    questions = [question_of(seed) for seed in range(CONFIGURATIONS)]
    seen = Counter[str]()
    for question, answer in zip(questions, answers_of(questions), strict=True):
        ours = our_answer(question)
        assert bool(ours["error"]) == bool(answer["error"]), (question, ours["error"], answer["error"])
        seen["invalid" if answer["error"] else "valid"] += 1
        if not answer["error"]:
            assert (ours["names"], ours["short"]) == (answer["names"], answer["short"]), question
            seen.update("nobody" if found is None else str(min(len(found), 3)) for found in answer["names"])
    assert min(seen[kind] for kind in ("valid", "invalid", "nobody", "1", "2", "3")) > 100  # and all of it was tried
