"""How many patches are sent at once: what makes it fewer, and more again."""

from extender.gates.patch_pace import PatchPace


def test_quick_patches_lead_to_all_there_may_be() -> None:
    """One more with each; a quarter at first."""
    pace = PatchPace(16)
    assert pace.limit == 4
    for second in range(100):
        pace.note(float(second), second + 0.1)
    assert pace.limit == 16


def test_slow_patches_lead_to_one_at_a_time() -> None:
    """Each halves the number, and there is always one."""
    pace = PatchPace(16)
    found = []
    for second in range(0, 12, 3):
        pace.note(float(second), second + 2.0)
        found.append(pace.limit)
    assert found == [2, 1, 1, 1]


def test_patches_that_were_sent_together_count_once() -> None:
    """Those of before are slow for the reason for which there are fewer by now."""
    pace = PatchPace(16)
    for second in range(12):
        pace.note(float(second), second + 0.1)
    for number in range(16):
        pace.note(20.0, 22.0 + number)
    assert pace.limit == 8
    pace.note(22.5, 40.0)
    assert pace.limit == 4
