"""wrk's figures as we read them: percentiles, failures, several loads as one."""

import pytest

from benchmarks.wrk import Load, LoadFailed, parse_output, pooled

GOOD = """Running 60s test @ http://127.0.0.1:1/scheduler/filter
  1 threads and 1 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   311.02us   53.11us   1.35ms   93.12%
Requests/sec:   3167.41

{"requests":4,"microseconds":20000,"connect":0,"read":0,"write":0,"status":0,"timeout":0,\
"latencies":{"250":2,"300":1,"9000":1}}
"""


def failing(**counts: int) -> str:
    """An output with so many failures of these kinds."""
    text = GOOD
    for kind, count in counts.items():
        text = text.replace(f'"{kind}":0', f'"{kind}":{count}')
    return text


def load(latencies: dict[int, int], seconds: float = 1.0) -> Load:
    """A load of these latencies."""
    return Load(requests=sum(latencies.values()), seconds=seconds, failures=0, latencies=latencies)


def test_figures_are_read_from_the_script_s_last_line() -> None:
    """What wrk prints for people is passed over; latencies come in milliseconds."""
    found = parse_output(GOOD, 1)
    assert (found.requests, found.requests_per_second, found.failures) == (4, 200.0, 0)
    assert (found.p50, found.p99, found.p999) == (0.25, 9.0, 9.0)


@pytest.mark.parametrize("kind", ["connect", "read", "write", "status", "timeout"])
def test_a_single_failure_of_any_kind_spoils_the_load(kind: str) -> None:
    """And the message says of which kind, since a quick 413 looks like a splendid benchmark."""
    with pytest.raises(LoadFailed, match=f"among 4 answers there were failures: 1 of {kind}"):
        parse_output(failing(**{kind: 1}), 1)


def test_several_kinds_of_failure_are_all_told() -> None:
    """With their counts."""
    with pytest.raises(LoadFailed, match="2 of read, 7 of status"):
        parse_output(failing(status=7, read=2), 1)


def test_what_wrk_adds_for_late_answers_is_taken_out() -> None:
    """Five answers in 4 ms over two connections: 2 ms each. Below 9 ms wrk adds 7, 5 and 3 ms, below 5 ms 3 ms."""
    seen = {250: 2, 300: 1, 5000: 1, 9000: 1}
    corrected = '{"250":2,"300":1,"3000":2,"5000":2,"7000":1,"9000":1}'
    output = GOOD.replace('"requests":4', '"requests":5').replace("20000", "4000")
    found = parse_output(output.replace('{"250":2,"300":1,"9000":1}', corrected), 2)
    assert found.latencies == seen


def test_latencies_that_do_not_add_up_are_refused() -> None:
    """Another wrk may count in another way: better no figures than wrong ones."""
    with pytest.raises(LoadFailed, match="4 answers have 5 latencies"):
        parse_output(GOOD.replace('"300":1', '"300":2'), 1)


def test_an_output_without_figures_is_a_failure() -> None:
    """As when wrk cannot connect: what it said is in the message."""
    with pytest.raises(LoadFailed, match="unable to connect"):
        parse_output("unable to connect to 127.0.0.1:1 Connection refused\n", 1)


@pytest.mark.parametrize(
    ("percent", "milliseconds"), [(0.1, 0.001), (1, 0.001), (1.1, 0.002), (50, 0.05), (99, 0.099), (100, 0.1)]
)
def test_a_percentile_is_the_least_latency_not_exceeded_by_that_many(percent: float, milliseconds: float) -> None:
    """Of latencies from 1 to 100 µs, one each."""
    assert load(dict.fromkeys(range(1, 101), 1)).percentile(percent) == milliseconds


def test_pooled_loads_count_every_answer_once() -> None:
    """The median is that of all answers, not the mean of medians."""
    both = pooled([load({100: 1}, 1.0), load({100: 1, 300: 7}, 3.0)])
    assert (both.requests, both.seconds, both.requests_per_second) == (9, 4.0, 2.25)
    assert both.latencies == {100: 2, 300: 7}
    assert both.p50 == 0.3


def test_nothing_measured_has_no_percentile() -> None:
    """Rather than a zero that looks fast."""
    with pytest.raises(LoadFailed, match="nothing was measured"):
        load({}).percentile(50)
