"""What containerd pulls on a node, and what the node's kernel then runs.

Pulling is written from containerd/platforms 1.0.0-rc.5 (database.go, compare.go, platforms.go) and containerd 2.3
(core/images/image.go: an index is searched for the node's platform, a single manifest is taken as it is), its texts
from runs of 2.3.7 and 1.6.20. Since 2.1 a pull keeps what is exactly of the node's platform; before, near ones too,
such as 386 on amd64. The kernel looks at no document: a program for another processor is an exec format error.

Limits: every arm node is v7, every arm64 core runs 32-bit programs too, levels (amd64/v3, arm64/v9) are had by every
node, Windows looks at no version, and a configuration is true of its program. A RuntimeClass whose handler is named
adds the handler's platforms to the node's, for pulling and running.
"""

import asyncio
import enum
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from testbed.images import Manifest
from tests.worlds.image_contents import document, is_image, is_index
from tests.worlds.image_references import Reference
from tests.worlds.registries import FAULT_STATUSES, Registries

Json = dict[str, Any]

_PULL_SECONDS = 300.0  # image_pull_progress_timeout, after which a pull without progress is ended
_REASONS = {
    401: "pull access denied, repository does not exist or may require authorization: authorization failed: no basic"
    " auth credentials",
    403: "pull access denied, repository does not exist or may require authorization: authorization failed: denied",
    429: "429 Too Many Requests",
    500: "500 Internal Server Error",
    503: "503 Service Unavailable",
}


class Outcome(enum.StrEnum):
    """What became of a container on its node."""

    RUNNING = "running"
    MOUNTED = "mounted"
    EXEC_FORMAT = "exec format error"
    NO_MATCH = "no match for platform in manifest"
    NO_PROGRAM = "nothing to run"
    NOT_PULLED = "not pulled"
    NOT_PRESENT = "not present, and never pulled"
    INVALID = "invalid image name"


class PullFailed(Exception):
    """containerd did not pull the image; the text is what the kubelet is told."""

    def __init__(self, outcome: Outcome, text: str) -> None:
        super().__init__(text)
        self.outcome = outcome


class Platform(NamedTuple):
    """A platform in containerd's spelling."""

    os: str
    architecture: str
    variant: str = ""


class Machine(NamedTuple):
    """What a node's containerd matches, in its order of preference, and whether only the first of it is pulled."""

    platforms: tuple[Platform, ...]
    pulls_exactly: bool


class Pulled(NamedTuple):
    """An image on a node: its digest, and the platform that its program is for; None if it has no program."""

    digest: str
    program: Platform | None


@lru_cache(maxsize=256)
def normalize(os: str, architecture: str, variant: str = "") -> Platform:
    """The platform as containerd compares it."""
    os, architecture, variant = os.lower(), architecture.lower(), variant.lower()
    match architecture:
        case "i386":
            architecture, variant = "386", ""
        case "x86_64" | "x86-64" | "amd64":
            architecture, variant = "amd64", "" if variant == "v1" else variant
        case "aarch64" | "arm64":
            architecture = "arm64"
            variant = {"8": "", "v8": "", "v8.0": "", "9": "v9", "9.0": "v9", "v9.0": "v9"}.get(variant, variant)
        case "armhf":
            architecture, variant = "arm", "v7"
        case "armel":
            architecture, variant = "arm", "v6"
        case "arm":
            variant = {"": "v7", "5": "v5", "6": "v6", "7": "v7", "8": "v8"}.get(variant, variant)
    return Platform("darwin" if os == "macos" else os or "linux", architecture, variant)


def machine_of(platform: str, containerd: str) -> Machine:
    """The machine of a node of this platform (`linux/arm64`) with this release of containerd (`2.3`)."""
    own = normalize(*platform.split("/"))
    near = {
        "amd64": [Platform(own.os, "386")],
        "arm64": [Platform(own.os, "arm", variant) for variant in ("v8", "v7", "v6", "v5")],
        "arm": [Platform(own.os, "arm", variant) for variant in ("v6", "v5")],
    }
    release = tuple(int(part) for part in containerd.split(".")[:2])
    return Machine((own, *near.get(own.architecture, [])), release >= (2, 1))


def with_handler(machine: Machine, platforms: Sequence[str]) -> Machine:
    """The machine for pods of a RuntimeClass whose handler runs programs of these platforms too."""
    if not platforms:
        return machine
    return Machine((*machine.platforms, *(normalize(*each.split("/")) for each in platforms)), pulls_exactly=False)


def can_run(machine: Machine, program: Platform) -> bool:
    """Whether the kernel starts the program. Levels of amd64 and arm64 are not its concern."""
    return any(
        (program.os, program.architecture) == (own.os, own.architecture)
        and (own.architecture != "arm" or program.variant == own.variant)
        for own in machine.platforms
    )


async def pull(
    registries: Registries, reference: Reference, logins: Sequence[str], machine: Machine
) -> tuple[Pulled, str]:
    """Pulls with the first login that works, which is returned too; anonymously only if there are none.

    Raises PullFailed.
    """
    failures: list[PullFailed] = []
    for login in logins or ("",):
        try:
            async with asyncio.timeout(_PULL_SECONDS):
                return await _pull_as(registries, reference, login, machine), login
        except PullFailed as exc:
            failures.append(exc)
        except TimeoutError:
            failures.append(PullFailed(Outcome.NOT_PULLED, f'failed to pull and unpack image "{reference}": canceled'))
    if len(failures) == 1:
        raise failures[0]
    raise PullFailed(failures[-1].outcome, f"[{', '.join(dict.fromkeys(map(str, failures)))}]")


async def _pull_as(registries: Registries, reference: Reference, login: str, machine: Machine) -> Pulled:
    host, repository, _, _ = reference
    await _meet_fault(registries, reference)
    if not registries.may_pull(host, repository, login or None):
        raise _unresolved(reference, 401)
    manifest = registries.manifest(host, repository, reference.name)
    if manifest is None:
        raise _unresolved(reference, 404)
    chosen = _choose(registries, reference, manifest, machine) if is_index(manifest) else manifest
    if not is_image(chosen):
        return Pulled(manifest.digest, None)
    config = registries.blob(host, repository, document(chosen)["config"]["digest"])
    return Pulled(manifest.digest, _stated(msgspec.json.decode(config or b"{}")))


async def _meet_fault(registries: Registries, reference: Reference) -> None:
    fault = registries.fault_of(reference.host, reference.repository)
    if fault is None:
        return
    if fault.what == "silent":
        await asyncio.get_running_loop().create_future()
    elif fault.what == "slow":
        await asyncio.sleep(3 * fault.amount)
    elif fault.what == "truncated":
        raise PullFailed(
            Outcome.NOT_PULLED, f'failed to pull and unpack image "{reference}": failed to copy: unexpected EOF'
        )
    elif fault.what == "refused":
        raise PullFailed(
            Outcome.NOT_PULLED,
            f'failed to pull and unpack image "{reference}": failed to resolve image: failed to do request: connect:'
            " connection refused",
        )
    else:
        raise _unresolved(reference, FAULT_STATUSES[fault.what])


def _unresolved(reference: Reference, status: int) -> PullFailed:
    reason = _REASONS.get(status, f"{reference}: not found")
    unexpected = "unexpected status from HEAD request: " if status in (429, 500, 503) else ""
    text = f'failed to pull and unpack image "{reference}": failed to resolve image: {unexpected}{reason}'
    return PullFailed(Outcome.NOT_PULLED, text)


def _choose(registries: Registries, reference: Reference, index: Manifest, machine: Machine) -> Manifest:
    """The manifest of an index that the node takes. Raises PullFailed."""
    near = sorted(_matching(registries, reference, index, machine.platforms), key=lambda found: found[0])
    taken = [manifest for rank, manifest in near if rank == 0 or not machine.pulls_exactly]
    if taken:
        return taken[0]
    if machine.pulls_exactly:
        lost = f"content digest {near[0][1].digest}" if near else f"no match for platform in manifest {index.digest}"
        text = f"rpc error: code = NotFound desc = get image config descriptor: {lost}: not found"
    else:
        text = (
            f'rpc error: code = NotFound desc = failed to pull and unpack image "{reference}": no match for platform in'
            " manifest: not found"
        )
    raise PullFailed(Outcome.NO_MATCH, text)


def _matching(
    registries: Registries, reference: Reference, index: Manifest, platforms: Sequence[Platform]
) -> Iterator[tuple[int, Manifest]]:
    """The manifests of an index that match, with the place of their platform; those of indexes within it too.

    An entry without a platform counts as its configuration says, and needs features of no system.
    """
    for entry in document(index)["manifests"]:
        child = registries.manifest(reference.host, reference.repository, entry["digest"])
        if child is None:
            continue
        stated = entry.get("platform")
        if is_index(child):
            yield from _matching(registries, reference, child, platforms)
            continue
        if stated is None:
            config = registries.blob(reference.host, reference.repository, document(child)["config"]["digest"])
            stated = msgspec.json.decode(config or b"{}")
        platform = _stated(stated)
        features = [each for each in stated.get("os.features") or () if each != "win32k" or platform.os != "windows"]
        if platform in platforms and not features:
            yield platforms.index(platform), child


def _stated(fields: Json) -> Platform:
    return normalize(fields.get("os") or "", fields.get("architecture") or "", fields.get("variant") or "")
