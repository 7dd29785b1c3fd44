"""What `inspect --verify` says of images whose layers are made to hurt, and what looking at one takes."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from benchmarks.cores import pinned
from benchmarks.siege.attacks import hurting_image
from testbed.hostile_layers import AMD64, KINDS

COLUMNS = ["layer", "state", "why", "seconds", "MB"]


class Inspection(msgspec.Struct, frozen=True):
    """What was said of an image, after how long, and how large the command became."""

    kind: str
    state: str
    why: str
    seconds: float
    megabytes: float

    @property
    def is_right(self) -> bool:
        """Whether nothing is held against the image, and the reason is the right one."""
        return self.state == "claimed" and KINDS[self.kind].why in self.why


class _Inside(msgspec.Struct):
    state: str
    detail: str


class _Inspected(msgspec.Struct):
    inside: list[_Inside]


def inspect_kinds(configuration: Path, core: int) -> Iterator[Inspection]:
    """Inspects an image of each kind, as a person would."""
    for number, kind in enumerate(KINDS):
        command = [sys.executable, "-m", "extender", "inspect", hurting_image(number), "--verify", "-o", "json"]
        command += [f"--require={AMD64}", f"--config={configuration}"]
        began = time.monotonic()
        with pinned(core), subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout
            printed = process.stdout.read()
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - began
        [found] = msgspec.json.decode(printed, type=list[_Inspected])[0].inside
        yield Inspection(kind, found.state, found.detail, seconds, used.ru_maxrss / 1024)
