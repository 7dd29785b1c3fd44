"""Every fuzz target, by name."""

from collections.abc import Mapping

from tests.fuzz.target import Target
from tests.fuzz.targets import answers, cluster, credentials, fetcher, http, images, layers, registry

TARGETS: Mapping[str, Target] = {
    target.name: target
    for file in (images, registry, credentials, answers, cluster, http, fetcher, layers)
    for target in file.TARGETS
}
