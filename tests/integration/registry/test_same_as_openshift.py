"""Thousands of random mirror objects, and the same candidates as from what OpenShift's operator makes of them.

Two programs judge: its library writes `registries.conf`, and the library that CRI-O reads that file with says who is
asked. What the operator refuses before it calls the library is not compared.
"""

import json
import random
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from extender.errors import ConfigError
from extender.images.reference import parse_reference
from extender.kubernetes.openshift_v1 import NEVER_CONTACT_SOURCE, MirrorObjects, RegistrySources, SourceMirrors
from extender.registry.openshift import routes_of
from extender.registry.routes import Routes
from testbed.binaries import CONTAINERS_IMAGE, RUNTIME_UTILS, GoModule, find_built
from tests.integration.registry.go_libraries import DIGEST, candidates

CLUSTERS = 5_000
HOSTS = ["a.io", "b.a.io", "c.b.a.io", "e.com:5000", "q.com"]
PATHS = ["", "", "/x", "/x/y", "/xy"]
WILDCARDS = ["*.a.io", "*.b.a.io", "*.io"]
MIRRORS = ["m1", "m2", "m3.io/x", "m4:5000/y", "m5.b.a.io"]
NAMES = [f"{host}{path}/app" for host in (*HOSTS, "z.io") for path in ("", "/x", "/x/y", "/xy")]
REFUSED_BEFORE = ("two values of mirrorSourcePolicy", "is a mirror of itself")


def objects_of(seed: int) -> MirrorObjects:
    """Objects with few sources and mirrors, so that they often speak of the same, in loops and in one another."""
    chance = random.Random(seed)
    wild = chance.random() < 0.3

    def scope() -> str:
        return (
            chance.choice(WILDCARDS) if wild and chance.random() < 0.4 else chance.choice(HOSTS) + chance.choice(PATHS)
        )

    sources = [scope() for _ in range(chance.choice([1, 1, 2, 4]))]
    nevers = {source for source in sources if chance.random() < 0.15}

    def one() -> SourceMirrors:
        source = chance.choice(sources)
        mirrors = chance.sample(MIRRORS, chance.choice([0, 1, 2, 3]))
        if chance.random() < 0.1:
            mirrors.insert(chance.randint(0, len(mirrors)), source)
        is_never = source in nevers or chance.random() < 0.005
        return SourceMirrors(source, tuple(mirrors), NEVER_CONTACT_SOURCE if is_never else None)

    digests, tags, policies = (tuple(one() for _ in range(chance.choice([0, 0, 1, 2, 3]))) for _ in range(3))
    insecure = tuple(chance.choice([scope(), chance.choice(MIRRORS)]) for _ in range(chance.choice([0, 0, 1, 2])))
    blocked = tuple(scope() for _ in range(chance.choice([0, 0, 1, 2])))
    return MirrorObjects(
        digest_mirrors=digests,
        tag_mirrors=tags,
        digest_policies=tuple(SourceMirrors(each.source, each.mirrors) for each in policies),
        sources=RegistrySources(insecure_registries=insecure, blocked_registries=blocked),
    )


def question_of(objects: MirrorObjects) -> dict[str, Any]:
    """The objects as the program takes them: one object for each source."""
    return {
        "digest_sets": [{"spec": {"imageDigestMirrors": [entry_of(each)]}} for each in objects.digest_mirrors],
        "tag_sets": [{"spec": {"imageTagMirrors": [entry_of(each)]}} for each in objects.tag_mirrors],
        "policies": [{"spec": {"repositoryDigestMirrors": [entry_of(each)]}} for each in objects.digest_policies],
        "insecure": objects.sources.insecure_registries,
        "blocked": objects.sources.blocked_registries,
    }


def entry_of(each: SourceMirrors) -> dict[str, Any]:
    policy = {"mirrorSourcePolicy": each.mirror_source_policy} if each.mirror_source_policy else {}
    return {"source": each.source, "mirrors": each.mirrors, **policy}


def names_of(seed: int) -> list[str]:
    chance = random.Random(seed)
    return [str(parse_reference(name + chance.choice([":1", f"@{DIGEST}"]))) for name in chance.sample(NAMES, 8)]


def ours(objects: MirrorObjects) -> Routes | str:
    try:
        return msgspec.structs.replace(routes_of(objects), refusal_of=lambda _: "")  # which is the policy's
    except ConfigError as exc:
        return str(exc)


def answers_of(program: Path, questions: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    asked = "\n".join(map(json.dumps, questions))
    done = subprocess.run([program], input=asked, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def has_one_list_a_source(objects: MirrorObjects) -> bool:
    """Whether no two lists of a kind are of one source, so that nothing is merged."""
    kinds = ((*objects.digest_mirrors, *objects.digest_policies), objects.tag_mirrors)
    return not any(count > 1 for kind in kinds for count in Counter(each.source for each in kind).values())


def asked(candidates: list[dict[str, Any]] | None) -> set[str] | None:
    return None if candidates is None else set(map(json.dumps, candidates))


def built(module: GoModule) -> Path:
    """The module's program; the test is skipped where it is not built."""
    (name,) = module.programs
    program = find_built(module) / name
    if not program.exists():
        pytest.skip(f"the library is not built: python -m testbed.binaries {module.name}")
    return program


@pytest.mark.slow
def test_operator_has_nodes_ask_the_same() -> None:
    """The same objects are refused, and the others give the same candidates: in order, where that is of one list."""
    operator, reader = built(RUNTIME_UTILS), built(CONTAINERS_IMAGE)
    clusters = [objects_of(seed) for seed in range(CLUSTERS)]
    files = answers_of(operator, map(question_of, clusters))
    questions = [
        {"main": file["conf"], "drop_ins": [], "names": names_of(seed), "short": [], "mode": "disabled"}
        for seed, file in enumerate(files)
    ]
    seen = Counter[str]()
    for objects, file, question, answer in zip(clusters, files, questions, answers_of(reader, questions), strict=True):
        conf = ours(objects)
        if isinstance(conf, str) and any(words in conf for words in REFUSED_BEFORE):
            seen["refused before"] += 1
        elif isinstance(conf, str) or file["error"] or answer["error"]:
            assert isinstance(conf, str), (objects, file["error"], answer["error"])
            assert file["error"] or answer["error"], (objects, conf)
            seen["refused"] += 1
        else:
            found = [candidates(conf, parse_reference(name)) for name in question["names"]]
            if has_one_list_a_source(objects):
                assert found == answer["names"], (objects, file["conf"])
                seen["in order"] += 1
            if '    location = "*.' not in file["conf"]:  # with a wildcard as a mirror nodes ask nobody
                assert list(map(asked, found)) == list(map(asked, answer["names"])), (objects, file["conf"])
            seen.update("nobody" if each is None else str(min(len(each), 3)) for each in found)
    assert min(seen[kind] for kind in ("refused", "in order", "1", "2", "3")) > 100  # and all of it was tried
    assert 0 < seen["refused before"] < CLUSTERS / 5
