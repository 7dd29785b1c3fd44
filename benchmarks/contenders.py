"""Our service and the extenders it is measured against, started with the same knowledge, and made to agree.

Knows what each must be told of nodes and images, and how their answers are compared; not how they are measured.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from benchmarks import payloads
from benchmarks.cores import cores
from benchmarks.loopback import ask_once
from benchmarks.measured_servers import serve, serve_go
from benchmarks.reference.programs import find_programs
from benchmarks.wrk import Target

OURS, TYPED, NULL, FLOOR = "ours", "typed Go", "null Go", "aiohttp floor"


class Disagreement(RuntimeError):
    """Two extenders let other nodes pass, or score others: their speed cannot be compared."""


class Contenders(msgspec.Struct, frozen=True):
    """Base URLs by contender; `multi` are a pod's images that run on every node, `single` those that run on half."""

    urls: Mapping[str, str]
    multi: tuple[str, ...]
    single: tuple[str, ...]
    go_version: str

    def targets(self, path: str, body: bytes, *names: str) -> dict[str, Target]:
        """The same question to each of `names`, to all if there are none."""
        return {name: Target(self.urls[name] + path, [body]) for name in names or self.urls}

    def check(self, path: str, body: bytes) -> dict[str, int]:
        """How many bytes the answer of each contender has.

        Raises:
            Disagreement: ours and the typed one are not of one mind.
            UnexpectedStatus: an answer is no 200.
        """
        answers = {name: ask_once(url + path, body) for name, url in self.urls.items()}
        ours, theirs = chosen(answers[OURS]), chosen(answers[TYPED])
        if ours != theirs:
            differing = sorted(set(ours.items()) ^ set(theirs.items()))[:3]
            raise Disagreement(f"{path}: ours and the Go extender differ on {differing}")
        return {name: len(answer) for name, answer in answers.items()}


@contextlib.contextmanager
def contenders(*, nodes: int, null: bool = True) -> Iterator[Contenders]:
    """All of them, running on the first core, and knowing so many nodes; `null` and floor only if `null`.

    Raises:
        BinariesMissing: there is no Go to build the baseline with.
    """
    core, programs = cores().server, find_programs()
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(serve("service", core=core, nodes=nodes))
        multi, sidecar, single = (f"{ours['registry']}/bench/{name}:1" for name in ("multi", "sidecar", "single"))
        typed = stack.enter_context(
            serve_go(
                programs.typed,
                core=core,
                nodes={payloads.node_name(index): payloads.architecture(index) for index in range(nodes)},
                images={multi: payloads.ARCHITECTURES, sidecar: payloads.ARCHITECTURES, single: ["amd64"]},
            )
        )
        urls = {OURS: ours["scheduler"], TYPED: typed["address"]}
        if null:
            urls[NULL] = stack.enter_context(serve_go(programs.null, core=core))["address"]
            urls[FLOOR] = stack.enter_context(serve("floor", core=core))["url"]
        yield Contenders(urls, (multi, sidecar), (single,), programs.go_version)


def chosen(answer: bytes) -> Mapping[str, int]:
    """What an answer amounts to: the nodes that pass a filter, each with 0, or the scores that are not.

    Raises:
        Disagreement: it is an error, and no answer.
    """
    found: Any = msgspec.json.decode(answer)
    if isinstance(found, list):
        return {score["Host"]: score["Score"] for score in found if score["Score"]}
    if found.get("Error"):
        raise Disagreement(found["Error"])
    names = found.get("NodeNames")
    if names is None:
        names = [node["metadata"]["name"] for node in found["Nodes"]["items"]]
    return dict.fromkeys(names, 0)
