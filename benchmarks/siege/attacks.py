"""The attacks, by name: what attackers send, at which rates, and from where.

A tenant's attack comes as pods of five namespaces: reviews that the API server relays, and pending pods that the watch
tells of. Strangers call from addresses of their own.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from benchmarks.siege.api_server import LOGIN
from benchmarks.siege.images import DENIED, SHARED
from benchmarks.siege.network import attacking_host, honest_host
from benchmarks.siege.pods import besieging_namespace, honest_namespace, new_pod

PLUGIN_PATTERN = attacking_host("*", "plugin")
"""The images that the credential-provider plugin serves, which hangs."""
SECRETS = 64
HOSTS = 16


class TenantsAttack(msgspec.Struct, frozen=True):
    """Pods whose images are `image(0)`, `image(1)` …, so many in each, which name so many pull secrets."""

    words: str
    image: Callable[[int], str]
    images_each: int = 10
    pods_per_second: float = 50.0
    secrets: int = 0

    def pod(self, number: int) -> dict[str, Any]:
        """Returns the `number`-th pod."""
        first = number * self.images_each
        image, *others = (self.image(index) for index in range(first, first + self.images_each))
        secrets = [f"large-{index}" for index in range(self.secrets)]
        pod = new_pod(besieging_namespace(number), number, [image], secrets)
        pod["spec"]["containers"] += [{"name": f"c{index}", "image": other} for index, other in enumerate(others)]
        return pod


class StrangersAttack(msgspec.Struct, frozen=True):
    """An attack of callers that are not the API server; `program` names what they do in attackers.py."""

    words: str
    program: str


def forged_pod(number: int) -> dict[str, Any]:
    """Returns a pod of another tenant's namespace, which names that tenant's secret and a new image."""
    image = f"{honest_host(number)}/forged/app-{number}:1"
    return new_pod(honest_namespace(number), number, [image], [LOGIN])


def _hosts(kind: str, path: str) -> Callable[[int], str]:
    """Returns images at 16 hosts of an attacker, all of them new."""
    return lambda number: f"{attacking_host(f'r{number % HOSTS}', kind)}/{path}-{number}:1"


def _new_hosts(kind: str) -> Callable[[int], str]:
    """Returns images each at a host of its own, which no breaker has met."""
    return lambda number: f"{attacking_host(f'r{number}', kind)}/app:1"


def _project(kind: str) -> Callable[[int], str]:
    """Returns images in a project of the honest registries, all of them new."""
    return lambda number: f"{honest_host(number)}/project-{kind}/app-{number}:1"


def _denied_tag(number: int) -> str:
    return f"{honest_host(number)}/{SHARED}:{DENIED}{number}"


ATTACKS: dict[str, TenantsAttack | StrangersAttack] = {
    "forged": StrangersAttack("forged reviews, 1,000/s", "forge"),
    "bodies": StrangersAttack("slow bodies, 500 connections", "send_slowly"),
    "idle": StrangersAttack("idle TLS connections, 4,000", "idle"),
    "secrets": TenantsAttack("64 secrets of 10,000 entries", _hosts("any", "s"), 1, 10.0, secrets=SECRETS),
    "indexes": TenantsAttack("hostile indexes", _hosts("hostile", "i"), 20),
    "hang": TenantsAttack("registries that hang", _new_hosts("hang")),
    "hang-project": TenantsAttack("a project that hangs", _project("hang")),
    "drip": TenantsAttack("registries that drip", _new_hosts("drip")),
    "412": TenantsAttack("412 for one project", _project("412")),
    "429": TenantsAttack("429 with ten hours", _new_hosts("429")),
    "5xx": TenantsAttack("503 for one project", _project("503")),
    "dns-silent": TenantsAttack("a DNS zone that is silent", _new_hosts("silent")),
    "dns-late": TenantsAttack("a DNS zone that is slow", _new_hosts("late")),
    "dns-failing": TenantsAttack("a DNS zone that fails", _new_hosts("failing")),
    "plugin": TenantsAttack("a credential program that hangs", _new_hosts("plugin")),
    "names": TenantsAttack("a million image names", _hosts("any", "m"), 50),
    "circle": TenantsAttack("redirects in circles", _new_hosts("circle")),
    "403": TenantsAttack("403 for tags beside honest ones", _denied_tag),
}


def chosen(names: Sequence[str]) -> list[str]:
    """Returns the names, or all of them if none is given. Raises ValueError for one that there is not."""
    if unknown := [name for name in names if name not in ATTACKS]:
        raise ValueError(f"{', '.join(unknown)}: there are {', '.join(ATTACKS)}")
    return list(names or ATTACKS)
