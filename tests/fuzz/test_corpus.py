"""Every input of the corpus through its target, without the fuzzer's engine."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.table import CORPUS, TARGETS, seeds
from tests.fuzz.target import close_loop

INPUTS = [(name, path) for name in TARGETS for path in seeds(name)]


@pytest.fixture(scope="module", autouse=True)
def _loop() -> Iterator[None]:
    """The targets' own loop, closed at the end."""
    yield
    close_loop()


@pytest.mark.parametrize(("name", "path"), INPUTS, ids=[f"{name}-{path.name}" for name, path in INPUTS])
def test_an_input_of_the_corpus_keeps_what_its_target_promises(name: str, path: Path) -> None:
    """It is read or refused as documented, and in less than a second."""
    started = time.process_time()
    TARGETS[name].run(path.read_bytes())
    assert time.process_time() - started < 1.0


def test_each_target_has_a_corpus_and_each_corpus_a_target() -> None:
    """A renamed target would otherwise begin with nothing. The whole is small enough for a repository."""
    assert {path.name for path in CORPUS.iterdir()} == TARGETS.keys()
    sizes = [path.stat().st_size for _, path in INPUTS]
    assert sum(sizes) < 300_000
