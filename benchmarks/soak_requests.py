"""The requests of a soak, each about a new pod, and the connections that send them and check the answers.

`soak.py` decides how often which request is sent.
"""

import random
from collections.abc import Mapping, Sequence

import msgspec

from benchmarks import payloads
from benchmarks.far_registry import is_multi_arch
from benchmarks.loopback import Connection, connect, request_bytes

# How many of a hundred requests are of each kind.
MIX: Mapping[str, int] = {
    "filter, 500 names": 24,
    "filter, all names": 8,
    "filter, 10 whole nodes": 5,
    "prioritize, 500 names": 20,
    "preempt, 10 nodes": 10,
    "webhook": 30,
    "no JSON": 2,
    "no pod": 1,
}
_KINDS = [kind for kind, share in MIX.items() for _ in range(share)]
_PATHS = {"filter": "/scheduler/filter", "prioritize": "/scheduler/prioritize", "preempt": "/scheduler/preempt"}
NONSENSE = {"no JSON": b'{"Pod": {"metadata"', "no pod": b'{"Pod": 1, "NodeNames": []}'}
FEW_NAMES, FEW_NODES = 500, 10
ODD = 0.04  # of the images: the share that is missing or fails
_ODD_PODS = 200  # pods of such images come again and again, as they do in a cluster
_MARKS = tuple(f"image-{number}.example.com/marked" for number in range(2))
_SERIAL = "fedcba98"
CHECKED = 0.02  # of the answers: their bodies are checked, not only the status


class Question(msgspec.Struct, frozen=True):
    """A request and its expected answer: the listener, the status, and whether no node may be refused."""

    kind: str
    listener: str
    raw: bytes
    status: int = 200
    passes_all: bool = False


class Questions:
    """Draws requests at random, the same ones for the same `seed`."""

    def __init__(self, hosts: Sequence[str], *, nodes: int, images: int, seed: int = 1) -> None:
        """Spreads `images` images over `hosts`; the last host is the one that fails."""
        self._chance = random.Random(seed)
        self._good = [
            f"{hosts[number % (len(hosts) - 1)]}/team-{number % 97}/service-{number}/component:1"
            for number in range(images)
        ]
        self._multi_arch = {image for image in self._good if is_multi_arch(image.partition("/")[2].rpartition(":")[0])}
        odd = max(int(images * ODD), 2)
        self._odd = [f"{hosts[0]}/missing/app-{number}:1" for number in range(odd // 2)]
        self._odd += [f"{hosts[-1]}/broken/app-{number}:1" for number in range(odd - odd // 2)]
        names = [payloads.node_name(index) for index in range(nodes)]
        few = names[:FEW_NAMES]
        victims = {name: {"Pods": [{"UID": "victim"}], "NumPDBViolations": 0} for name in names[:FEW_NODES]}
        whole = [payloads.node(index) for index in range(FEW_NODES)]
        self._tails = {
            "filter, 500 names": _tail(Nodes=None, NodeNames=few),
            "filter, all names": _tail(Nodes=None, NodeNames=names),
            "filter, 10 whole nodes": _tail(Nodes={"metadata": {}, "items": whole}, NodeNames=None),
            "prioritize, 500 names": _tail(Nodes=None, NodeNames=few),
            "preempt, 10 nodes": _tail(NodeNameToVictims=None, NodeNameToMetaVictims=victims),
        }
        self._pod = msgspec.json.encode(payloads.pod(_MARKS, serial=_SERIAL))
        self._review = payloads.review(_MARKS, serial=_SERIAL)

    def draw(self, number: int) -> Question:
        """Returns the next request, about the pod of this number."""
        chance = self._chance
        kind = chance.choice(_KINDS)
        if kind in NONSENSE:
            return Question(kind, "scheduler", request_bytes(_PATHS["filter"], NONSENSE[kind]), 400)
        is_odd = chance.random() < ODD
        images = chance.choice(self._odd if is_odd else self._good), chance.choice(self._good)
        serial = number % _ODD_PODS if is_odd else number + _ODD_PODS
        if kind == "webhook":
            return Question(kind, "admission", request_bytes("/admission/pods", _marked(self._review, images, serial)))
        body = b'{"Pod":' + _marked(self._pod, images, serial) + self._tails[kind]
        passes_all = self._multi_arch.issuperset(images)
        return Question(kind, "scheduler", request_bytes(_PATHS[kind.partition(",")[0]], body), passes_all=passes_all)

    def is_checked(self) -> bool:
        """Whether the body of an answer is to be checked."""
        return self._chance.random() < CHECKED


class Asker:
    """A connection to each listener, opened when needed, with one request at a time."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self._addresses = addresses
        self._connections: dict[str, Connection] = {}
        self._question: Question | None = None

    def ask(self, question: Question) -> None:
        """Sends the request; `read` reads the answer."""
        self._question = question
        if question.listener not in self._connections:
            self._connections[question.listener] = connect(f"http://{self._addresses[question.listener]}")
        self._connections[question.listener].send(question.raw)

    def read(self, *, checked: bool) -> str:
        """Reads the answer and returns what is wrong with it, in a few words; empty if nothing is."""
        question = self._question
        assert question
        try:
            status, body = self._connections[question.listener].read()
        except OSError as exc:
            self.hang_up()
            return f"{question.kind}: {type(exc).__name__}"
        if status != question.status:
            return f"{question.kind}: status {status}"
        return _fault_in(question, body) if checked and status == 200 else ""

    def hang_up(self) -> None:
        """Closes all connections."""
        for one in self._connections.values():
            one.close()
        self._connections.clear()


def _fault_in(question: Question, body: bytes) -> str:
    """Returns what is wrong with the body of an answer with status 200; empty if nothing is."""
    said = msgspec.json.decode(body)
    match question.kind.partition(",")[0]:
        case "filter":
            refused = {**(said["FailedNodes"] or {}), **(said["FailedAndUnresolvableNodes"] or {})}
            wrong = said["Error"] or (question.passes_all and refused)
        case "prioritize":
            wrong = any(not 0 <= each["Score"] <= 10 for each in said)
        case "preempt":
            kept = len(said["NodeNameToMetaVictims"])
            wrong = kept > FEW_NODES or (question.passes_all and kept < FEW_NODES)
        case _:
            wrong = said["response"]["allowed"] is not True
    return f"{question.kind}: wrong answer" if wrong else ""


def _tail(**fields: object) -> bytes:
    """Returns the part of a request's body that follows the pod."""
    return b"," + msgspec.json.encode(fields)[1:]


def _marked(document: bytes, images: Sequence[str], serial: int) -> bytes:
    """Returns the document about the pod of this serial number with these images."""
    document = document.replace(_SERIAL.encode(), f"{serial:08x}".encode())
    for mark, image in zip(_MARKS, images, strict=True):
        document = document.replace(mark.encode(), image.encode())
    return document
