"""The attacks, by name: what attackers send, and at which rates.

A tenant's attack comes as pods of five namespaces: reviews that the API server relays, and pending pods that the watch
tells of. Strangers call the webhook from addresses of their own.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from benchmarks.siege.api_server import LOGIN_SECRET
from benchmarks.siege.calls import new_pod
from benchmarks.siege.images import DENIED, SHARED
from benchmarks.siege.network import UPSTREAMS, attacking_host, honest_host

HONEST_NAMESPACES = tuple(f"team-{number}" for number in range(10))
_BESIEGERS, _SECRETS, _HOSTS = 5, 64, 16
Images = Callable[[int], str]


class Attack(msgspec.Struct, frozen=True):
    """Pods whose images are `image(0)`, `image(1)` …, so many in each; or what strangers do: `program` is in attackers.

    Each pod names `secrets` pull secrets of 10,000 entries.
    """

    words: str
    image: Images | None = None
    images_each: int = 10
    pods_per_second: float = 50.0
    secrets: int = 0
    program: str = ""

    def pod(self, number: int) -> dict[str, Any]:
        """Returns the `number`-th pod of the attack."""
        return new_pod(
            f"besieger-{number % _BESIEGERS}",
            number,
            list(self._images(number)),
            [f"large-{index}" for index in range(self.secrets)],
        )

    def _images(self, number: int) -> Iterator[str]:
        assert self.image
        for index in range(number * self.images_each, (number + 1) * self.images_each):
            yield self.image(index)


def forged_pod(number: int) -> dict[str, Any]:
    """Returns a pod of another tenant's namespace, which names that tenant's secret and a new image."""
    image = f"{honest_host(number)}/forged/app-{number}:1"
    return new_pod(HONEST_NAMESPACES[number % len(HONEST_NAMESPACES)], number, [image], [LOGIN_SECRET])


def _hosts(kind: str) -> Images:
    """Returns images at 16 hosts of an attacker."""
    return lambda number: f"{attacking_host(f'r{number % _HOSTS}', kind)}/app-{number}:1"


def _new_hosts(*kinds: str) -> Images:
    """Returns images each at a host of its own, of these kinds in turns."""
    return lambda number: f"{attacking_host(f'r{number}', kinds[number % len(kinds)])}/app:1"


def _upstream(number: int) -> str:
    return f"{UPSTREAMS[number % len(UPSTREAMS)]}/app-{number}:1"


def _made_up(number: int) -> str:
    return f"{honest_host(number)}/made-up-{number}/app:1"


def _refused(number: int) -> str:
    """Returns an image that an honest registry refuses: of a project with 412 or 503, or a tag beside honest ones."""
    paths = (f"project-412/app-{number}:1", f"project-503/app-{number}:1", f"{SHARED}:{DENIED}{number}")
    return f"{honest_host(number)}/{paths[number % len(paths)]}"


def _hanging(number: int) -> str:
    """Returns an image at a host that hangs, or in a project that hangs at an honest one."""
    return f"{honest_host(number)}/project-hang/app-{number}:1" if number % 2 else _new_hosts("hang")(number)


ATTACKS = {
    "103": Attack("registries that answer 103 without end", _new_hosts("103")),
    "chunks": Attack("chunks of one byte, extensions without end", _new_hosts("chunks")),
    "fat": Attack("20 hosts a pod, bodies of 900 KB", _new_hosts("fat"), 20),
    "stop": Attack("bodies that stop a byte before 4 MiB", _new_hosts("stop")),
    "mirror": Attack("upstreams that hang behind the mirror", _upstream),
    "made-up": Attack("made-up names, 500 at honest hosts", _made_up),
    "dns": Attack("zones that are silent, late, failing", _new_hosts("silent", "late", "failing")),
    "names": Attack("a million image names", _hosts("any"), 50),
    "hang": Attack("registries and projects that hang", _hanging),
    "drip": Attack("registries that drip", _new_hosts("drip")),
    "circle": Attack("redirects and tokens in circles", _new_hosts("circle")),
    "linger": Attack("answers, and connections that stay open", _new_hosts("linger")),
    "429": Attack("429 with ten hours", _new_hosts("429")),
    "refused": Attack("412, 503, 403 at honest hosts", _refused),
    "secrets": Attack("64 secrets of 10,000 entries", _hosts("any"), 1, 10.0, secrets=_SECRETS),
    "indexes": Attack("hostile indexes", _hosts("hostile"), 20),
    "forged": Attack("forged reviews, 1,000/s", program="forge"),
    "bodies": Attack("slow bodies, 500 connections", program="send_slowly"),
    "idle": Attack("idle TLS connections, 4,000", program="idle"),
}
