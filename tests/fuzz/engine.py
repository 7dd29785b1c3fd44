"""Fuzzes one target in this process until its time is up: `python -m tests.fuzz.engine TARGET SECONDS FOLDER SEED`.

The engine is atheris, the coverage-guided fuzzer that Google keeps for Python: libFuzzer's mutations, corpus and
timeouts, with coverage from the bytecode of this package. It has wheels for CPython 3.11 to 3.13 on Linux of x86-64.
Replaying the corpus does not need it.

FOLDER gets the inputs that reach new code (`corpus`), the input of a crash (`crash-…`, `timeout-…`) and `figures.json`.
"""

import hashlib
import json
import logging
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import atheris
import structlog

from tests.fuzz.seeds import read_seeds

HANG_SECONDS = 1.0
"""Processor time that one input may take."""

_STUCK_SECONDS = 20  # of the wall clock, after which libFuzzer gives up on an input that never ends
_WRITE_SECONDS = 0.5
_MEMORY_MEGABYTES = 2048
_USUAL_BYTES = 2048  # of an input, unless a seed has half as many
_NESTED_ONE_IN, _REPEATED_ONE_IN = 40, 40
_MOST_LEVELS = 1500  # more than Python allows, so that what runs into its limit is found
_PAIRS = ((b"[", b"1", b"]"), (b'{"a":', b"1", b"}"), (b"[", b"", b"]"), (b"\x91", b"\x90", b""))


class TooSlow(Exception):
    """One input took longer than `HANG_SECONDS`."""


class Figures:
    """Counts and times each input of a target, and writes the figures to a file twice a second."""

    def __init__(self, run: Callable[[bytes], None], file: Path) -> None:
        self._run = run
        self._file = file
        self._started = time.monotonic()
        self._written = 0.0
        self.executions = 0
        self.slowest_seconds = 0.0
        self.first_megabytes = 0.0

    def run(self, data: bytes) -> None:
        """Runs one input. Raises TooSlow if it took too long, else what the target raises."""
        started = time.process_time()
        try:
            self._run(data)
            seconds = time.process_time() - started
            if seconds > HANG_SECONDS:
                raise TooSlow(f"{seconds:.2f} s")  # noqa: TRY301  # it is kept below as a crash is
        except BaseException:
            # libFuzzer would write it too, unless this process ends before it comes to that.
            self._file.with_name(f"crash-{hashlib.sha1(data).hexdigest()}").write_bytes(data)
            raise
        finally:
            self.executions += 1
            self.slowest_seconds = max(time.process_time() - started, self.slowest_seconds)
            self._write()

    def _write(self) -> None:
        now = time.monotonic()
        if now - self._written < _WRITE_SECONDS:
            return
        self._written = now
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        memory = pages * 4096 / 1e6  # resident now
        self.first_megabytes = self.first_megabytes or memory
        figures = {
            "executions": self.executions, "seconds": now - self._started, "slowest_seconds": self.slowest_seconds,
            "first_megabytes": self.first_megabytes, "last_megabytes": memory,
        }  # fmt: skip
        self._file.write_text(json.dumps(figures), encoding="utf-8")


def mutate(data: bytes, most_bytes: int, seed: int) -> bytes:
    """Returns a mutation of an input: libFuzzer's own, and now and then a deep nesting or a long repetition.

    libFuzzer changes a few bytes at a time, and would hardly ever nest a thousand lists.
    """
    chance = random.Random(seed)
    if not chance.randrange(_NESTED_ONE_IN):
        opening, inner, closing = chance.choice(_PAIRS)
        levels = chance.choice((10, 100, chance.randrange(600, 1000), _MOST_LEVELS))
        start = chance.randrange(len(data) + 1)
        end = min(len(data), start + chance.randrange(8))
        data = data[:start] + opening * levels + inner + closing * levels + data[end:]
    elif data and not chance.randrange(_REPEATED_ONE_IN):
        start = chance.randrange(len(data))
        end = min(len(data), start + chance.randrange(1, 64))
        data = data[:end] + data[start:end] * chance.randrange(1, 300) + data[end:]
    else:
        data = atheris.Mutate(data, most_bytes)
    return data[:most_bytes]


def main() -> None:
    """Fuzzes the target that the arguments name; ends this process."""
    name, seconds, folder, seed = sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable()
    with atheris.instrument_imports(include=["extender", "tomllib", "email._parseaddr"]):
        from tests.fuzz.table import TARGETS
    corpus = folder / "corpus"
    corpus.mkdir(exist_ok=True)
    seeds = read_seeds(name)
    for member, data in seeds.items():
        (corpus / member).write_bytes(data)
    most_bytes = max(_USUAL_BYTES, 2 * max(map(len, seeds.values())))
    figures = Figures(TARGETS[name], folder / "figures.json")
    arguments = [
        name, f"-max_total_time={seconds}", f"-max_len={most_bytes}", f"-timeout={_STUCK_SECONDS}", f"-seed={seed}",
        f"-rss_limit_mb={_MEMORY_MEGABYTES}", f"-artifact_prefix={folder}/", f"-dict={corpus}/dictionary",
        "-print_final_stats=1", "-len_control=0", str(corpus),
    ]  # fmt: skip
    atheris.Setup(arguments, figures.run, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
