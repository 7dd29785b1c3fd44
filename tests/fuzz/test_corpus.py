"""Every input of the corpus through its target, without the fuzzer's engine."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.seeds import CORPUS, archive_of, read_seeds, write_seeds
from tests.fuzz.table import TARGETS
from tests.fuzz.target import close_loop


@pytest.fixture(scope="module", autouse=True)
def _loop() -> Iterator[None]:
    yield
    close_loop()


@pytest.mark.parametrize("name", TARGETS)
def test_each_input_of_the_corpus_keeps_what_its_target_promises(name: str) -> None:
    """It is read or refused as documented, and in less than a second. A failure names the input."""
    for member, data in read_seeds(name).items():
        started = time.process_time()
        try:
            TARGETS[name](data)
        except BaseException as exc:
            exc.add_note(f"{archive_of(name)}: {member}")
            raise
        assert time.process_time() - started < 1.0, member


def test_each_target_has_a_corpus_and_each_corpus_a_target() -> None:
    """A renamed target would otherwise begin with nothing. The whole is small enough for a repository."""
    assert {path.stem for path in CORPUS.iterdir()} == TARGETS.keys()
    assert sum(path.stat().st_size for path in CORPUS.iterdir()) < 400_000


def test_an_archive_depends_on_its_inputs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a new input changes an archive by that input, on whatever machine it is added."""
    for name in TARGETS:
        written = archive_of(name).read_bytes()
        seeds = read_seeds(name)
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr("tests.fuzz.seeds.CORPUS", tmp_path)
            write_seeds(name, dict(sorted(seeds.items(), reverse=True)))
            assert archive_of(name).read_bytes() == written
