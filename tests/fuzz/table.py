"""Every fuzz target, by name.

A target takes any bytes. It returns if the parser read or refused them as its documentation says, and raises anything
if not.
"""

from collections.abc import Callable, Mapping

from tests.fuzz.targets import answers, cluster, credentials, fetcher, http, images, layers, registry

TARGETS: Mapping[str, Callable[[bytes], None]] = {
    target.__name__: target
    for file in (images, registry, credentials, answers, cluster, http, fetcher, layers)
    for target in file.TARGETS
}
