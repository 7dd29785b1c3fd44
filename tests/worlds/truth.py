"""What is true of a world's images, pods and nodes: what invariants compare the service's answers with.

Nothing of the service decides here. Platforms of images are those of the plan, and whether a node runs an image is the
kubelet's rule.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tests.worlds.choices import OPERATOR_LOGIN, PRIVATE_HOST
from tests.worlds.plan import Image, Manifest, Secret

PREFIX = "multiarch-extender.io/"
GATE, LABEL = f"{PREFIX}platforms", f"{PREFIX}gated"
REASON, ADDED, MODE = f"{PREFIX}reason", f"{PREFIX}added", f"{PREFIX}mode"
IMPOSSIBLE = "no-common-platform"
"""In the required node affinity of a pod that can run nowhere."""
NOT_IN_VIEW = "not in view yet"
"""Why a node is refused that the service does not see yet, whatever the images are."""
CRITICAL = ("system-node-critical", "system-cluster-critical")


class Version:
    """What a reference serves from `at` on; without an image it is gone."""

    def __init__(self, at: float, image: Image | None) -> None:
        self.at = at
        self.image = image


class Contents:
    """What each reference has served, and which logins each namespace's secrets have had."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._versions: dict[str, list[Version]] = {}
        self._secrets: dict[tuple[str, str], list[tuple[float, Mapping[str, str]]]] = {}
        self.first_used: dict[str, float] = {}
        self.learned: dict[tuple[str, str], float] = {}
        """Since when replicas must know an image that was used in a namespace while nothing was wrong."""

    def push(self, image: Image) -> None:
        self._versions.setdefault(image.reference, []).append(Version(self._clock(), image))

    def remove(self, reference: str) -> None:
        self._versions.setdefault(reference, []).append(Version(self._clock(), None))

    def set_secret(self, secret: Secret) -> None:
        self._secrets.setdefault((secret.namespace, secret.name), []).append((self._clock(), secret.logins))

    def use(self, pod: Manifest, at: float) -> None:
        """Notes that the pod's images are used, since then if they never were."""
        for reference in references(pod):
            self.first_used.setdefault(reference, at)

    def learn(self, namespace: str, reference: str) -> None:
        """Notes that replicas must know the image from now on, for pods of the namespace."""
        self.learned[namespace, reference] = self._clock()

    def image(self, reference: str) -> Image | None:
        versions = self._versions.get(reference)
        return versions[-1].image if versions else None

    def since(self, reference: str) -> float:
        """Since when the reference serves what it does; infinite if it serves nothing."""
        versions = self._versions.get(reference)
        return versions[-1].at if versions and versions[-1].image else float("inf")

    def has_changed(self, reference: str) -> bool:
        """Whether the reference has ever served something else, or was gone."""
        return len(self._versions.get(reference, ())) > 1

    def login_since(self, pod: Manifest, image: Image) -> float | None:
        """Since when a secret of the pod opens the image; None if none does, 0.0 if everybody may pull."""
        if not image.login:
            return 0.0
        namespace = pod["metadata"]["namespace"]
        for secret in pod["spec"].get("imagePullSecrets") or ():
            at, logins = self._secrets.get((namespace, secret["name"]), [(0.0, {})])[-1]
            if logins.get(image.host) == image.login:
                return at
        return None

    def had_login(self, namespace: str, secret: str, host: str, login: str, first: float, last: float) -> bool:
        """Whether the secret had the login at any time from the first to the last."""
        states = self._secrets.get((namespace, secret), [])
        ends = [at for at, _ in states[1:]] + [float("inf")]
        return any(
            at <= last and end >= first and logins.get(host) == login
            for (at, logins), end in zip(states, ends, strict=True)
        )

    def was_open_for(self, pod: Manifest, image: Image) -> bool:
        """Whether a secret of the pod's namespace has ever opened the image."""
        namespace = pod["metadata"]["namespace"]
        return any(
            logins.get(image.host) == image.login
            for (of, _), states in self._secrets.items()
            for _, logins in states
            if of == namespace
        )


def references(pod: Manifest) -> list[str]:
    """The images of the pod's containers, init containers and volumes, in order."""
    spec = pod["spec"]
    named = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    volumes = [each["image"]["reference"] for each in spec.get("volumes") or () if "image" in each]
    return [*(each["image"] for each in named), *volumes]


def is_gated(pod: Manifest, name: str = GATE) -> bool:
    return any(gate["name"] == name for gate in pod["spec"].get("schedulingGates") or ())


def other_gates(pod: Manifest) -> bool:
    return any(gate["name"] != GATE for gate in pod["spec"].get("schedulingGates") or ())


def annotation(obj: Manifest, key: str) -> str:
    return str((obj["metadata"].get("annotations") or {}).get(key, ""))


def name_of(obj: Manifest) -> str:
    return str(obj["metadata"]["name"])


def owner_kind(pod: Manifest) -> str:
    """The kind of the pod's controller; empty for a bare pod."""
    owners: Iterable[Mapping[str, Any]] = pod["metadata"].get("ownerReferences") or ()
    return next((str(each["kind"]) for each in owners if each.get("controller")), "")


def required_terms(spec: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return required["nodeSelectorTerms"] if required else None


def preferred_terms(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    return list(affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ())


def operator_opens(image: Image) -> bool:
    """Whether the operator's own login opens the image."""
    return image.host == PRIVATE_HOST and image.login == OPERATOR_LOGIN


def ours(pod: Manifest) -> dict[str, str]:
    """What the service has written into annotations and labels of the pod."""
    metadata = pod["metadata"]
    keys = {**(metadata.get("annotations") or {}), **(metadata.get("labels") or {})}
    return {key: value for key, value in keys.items() if key in (REASON, ADDED, LABEL, GATE)}


def runs_on(image: Image, node: Manifest, compatibility: tuple[str, ...]) -> bool:
    """Whether the node runs the image, by docs/concepts.md; its platforms are known ones.

    An arm node of a plan is of v7. An entry of an index that states a level matches no node; of a single manifest no
    runtime looks at it.
    """
    os, architecture = platform_of(node)
    for text in image.platforms:
        of, name, variant = (*text.split("/"), "")[:3]
        is_level = (name, variant) not in ((name, ""), ("arm64", "v8")) and name != "arm"
        if of != os or (is_level and image.form == "index"):
            continue
        if name == architecture:
            return True
        if (name, architecture) == ("386", "amd64") and "386-on-amd64" in compatibility:
            return True
        if (name, architecture) == ("arm", "arm64") and "arm-on-arm64" in compatibility:
            return True
    return False


def platform_of(node: Manifest) -> tuple[str, str]:
    """Operating system and architecture that a node states, in its status first."""
    info = (node.get("status") or {}).get("nodeInfo") or {}
    labels = node["metadata"].get("labels") or {}
    return (
        str(info.get("operatingSystem") or labels.get("kubernetes.io/os", "")),
        str(info.get("architecture") or labels.get("kubernetes.io/arch", "")),
    )
