"""Every input of the corpus through its target, without the fuzzer's engine."""

import time
from collections.abc import Iterator

import pytest

from tests.fuzz.table import CORPUS, TARGETS, seeds
from tests.fuzz.target import close_loop


@pytest.fixture(scope="module", autouse=True)
def _loop() -> Iterator[None]:
    """The targets' own loop, closed at the end."""
    yield
    close_loop()


@pytest.mark.parametrize("name", TARGETS)
def test_each_input_of_the_corpus_keeps_what_its_target_promises(name: str) -> None:
    """It is read or refused as documented, and in less than a second. A failure names the file."""
    for path in seeds(name):
        started = time.process_time()
        try:
            TARGETS[name].run(path.read_bytes())
        except BaseException as exc:
            exc.add_note(str(path))
            raise
        assert time.process_time() - started < 1.0, path


def test_each_target_has_a_corpus_and_each_corpus_a_target() -> None:
    """A renamed target would otherwise begin with nothing. The whole is small enough for a repository."""
    assert {path.name for path in CORPUS.iterdir()} == TARGETS.keys()
    assert sum(path.stat().st_size for name in TARGETS for path in seeds(name)) < 300_000
