"""The line through what was measured, and the pods that are drawn over the images in memory."""

import itertools

import pytest

from benchmarks.growth import Fit, fit_line, spread


def test_points_on_a_line_are_explained_by_it() -> None:
    """Slope and height are found, and nothing is left over."""
    found = fit_line([(10, 0.25), (1_000, 2.23), (15_000, 30.23)])
    assert found.slope == pytest.approx(0.002)
    assert found.intercept == pytest.approx(0.23)
    assert found.r_squared == pytest.approx(1.0)


def test_points_off_the_line_are_explained_in_part() -> None:
    """The textbook's example: y = 0.6 x + 2.2, R² = 0.6."""
    found = fit_line([(1, 2), (2, 4), (3, 5), (4, 4), (5, 5)])
    assert (found.slope, found.intercept, found.r_squared) == pytest.approx((0.6, 2.2, 0.6))


def test_what_does_not_grow_is_a_level_line() -> None:
    """Correlation is not defined for it; the line is right all the same."""
    assert fit_line([(10, 0.3), (100, 0.3), (1_000, 0.3)]) == Fit(0.0, 0.3, 1.0)


@pytest.mark.parametrize(("images", "pods"), [(10, 6_000), (11, 6_000), (100, 7), (100_000, 6_000)])
def test_pods_are_spread_over_all_images(images: int, pods: int) -> None:
    """No image twice in one pod or in two, none that is not there, and the gaps between them are alike."""
    pairs = spread(images, pods)
    drawn = sorted(number for pair in pairs for number in pair)
    assert len(pairs) == min(pods, images // 2)
    assert len(set(drawn)) == 2 * len(pairs)
    assert 0 <= drawn[0] <= drawn[-1] < images
    gaps = {later - earlier for earlier, later in itertools.pairwise(drawn)}
    assert max(gaps) - min(gaps) <= 1
