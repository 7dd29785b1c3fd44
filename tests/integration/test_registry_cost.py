"""What the service costs registries, to the request."""

import pytest

from benchmarks.registry_cost import SCENARIOS, Scenario, cost_of

# Refusals that say how to get a token, tokens, HEADs and GETs of manifests, GETs of blobs.
EXPECTED = {
    "first pod of a multi-arch image": (1, 1, 0, 1, 0),
    "first pod of an image for one platform, which its config names": (1, 1, 0, 1, 1),
    "1,000 pods of one image within 15 minutes": (1, 1, 0, 1, 0),
    # The public may know what a digest is for ever.
    "1,000 pods of one image named by digest, in 24 hours": (1, 1, 0, 1, 0),
    # An image is asked for every 14.4 minutes and a tag is fresh for 15, so every second pod is worth a HEAD. What a
    # registry says of tokens for one repository holds for the next.
    "10 images, 1,000 pods in 24 hours": (1, 500, 490, 10, 0),
    "the same, 3 replicas": (3, 1500, 1470, 30, 0),
    "the same, 3 replicas that share a store": (1, 500, 490, 10, 0),
    # Fresh for 60 s; a token is renewed after 240 of its 300 s.
    "one image with `imagePullPolicy: Always`, a pod every 5 s for an hour": (1, 15, 59, 1, 0),
    "a tag that has moved, 100 pods in the 15 minutes after it was noticed": (0, 1, 1, 1, 0),
    # Each further login proves itself by a HEAD; what the digest is has been fetched once.
    "5 namespaces with a login each, one image": (1, 5, 4, 1, 0),
    # Every 5 s for the first minute, then every minute.
    "an image that is not there, asked for every 5 s for an hour": (1, 15, 0, 71, 0),
    "restart with a store that knows 2,000 images, all asked for a minute later": (0, 0, 0, 0, 0),
    "the same, asked for an hour later": (1, 2000, 2000, 0, 0),
}


def test_every_scenario_has_its_price() -> None:
    """None is played without being checked, or checked without being played."""
    assert [scenario.words for scenario in SCENARIOS] == list(EXPECTED)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.words.replace(" ", "-"))
async def test_cost(scenario: Scenario) -> None:
    """As many requests as the registry counted, and not one more."""
    cost = await cost_of(scenario)
    assert tuple(cost.requests.values()) == EXPECTED[scenario.words]
