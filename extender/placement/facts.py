"""The images that a pod names, and what is known of each: `RunsOn`, `Anywhere`, `Pending` or `Unknown`.

Depends on neither nodes nor policy.
"""

import enum
import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from extender.images.content import RETRYABLE, UNANSWERED, Answer, Cause, Content, Failure
from extender.images.manifest import Kind
from extender.images.platform import Compatibility, Platform, needs_handler, runs_on
from extender.kubernetes.core_v1 import Container, Pod, Volume, VolumeMount


class RunsOn(msgspec.Struct, frozen=True, gc=False):
    """The image is built for these platforms (at least one) and no others, or that is what the operator says.

    `asked`: what the pod asks for by another field than its image, where that leaves platforms out, so that there may
    be none: an operating system, or a RuntimeClass that means none of the image's platforms. Or what nodes lack.
    `by_operator`: the operator says so, whatever the image's registry says.
    """

    platforms: frozenset[Platform]
    asked: str = ""
    by_operator: bool = False


class Anywhere(msgspec.Struct, frozen=True, gc=False):
    """The image runs on any architecture: it is data and states no platforms, or its RuntimeClass runs it.

    `os` is the operating system for which its pod says that it is; empty if it says nothing.
    """

    os: str = ""


class Pending(msgspec.Struct, frozen=True, gc=False):
    """The image's platforms are not known yet, but are likely to be known soon."""

    cause: Cause
    detail: str


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """The image's platforms are not known, and are not expected to become known unless someone acts."""

    cause: Cause
    detail: str


MOST_IMAGES = 256
MANY_IMAGES = f"(more than {MOST_IMAGES} images)"
"""Stands for the images of a pod that names too many to be looked up. It is no reference, so it is unknown."""

ImageFact = RunsOn | Anywhere | Pending | Unknown
_UNRESOLVED = (Pending, Unknown)


class Role(enum.StrEnum):
    """How a pod uses an image."""

    CONTAINER = "container"
    DATA = "data"
    """For a container whose program comes from a volume: the image is what that program works on."""
    VOLUME = "volume"


class RuntimeClass(msgspec.Struct, frozen=True, gc=False):
    """A RuntimeClass that runs programs of these platforms, whatever its nodes are; without any, it runs no images."""

    name: str
    platforms: frozenset[Platform]


NO_RUNTIME_CLASSES: Mapping[str, RuntimeClass] = {}


class PodImage(msgspec.Struct, frozen=True, gc=False):
    """An image as a pod names it. `pull_policy` is Always, IfNotPresent, Never or empty.

    `os` is the operating system for which the pod says that it is: a kubelet refuses it on any other. Mostly empty.
    `runtime` is the pod's RuntimeClass, if the operator says which platforms it means. Mostly None.
    `has_handler`: the pod has a RuntimeClass of which the operator says nothing.
    """

    reference: str
    role: Role = Role.CONTAINER
    pull_policy: str = ""
    os: str = ""
    runtime: RuntimeClass | None = None
    has_handler: bool = False


def known_platforms(facts: Iterable[ImageFact]) -> list[frozenset[Platform]]:
    """The platforms of each image that runs on some and not on others."""
    return [fact.platforms for fact in facts if isinstance(fact, RunsOn)]


def system_asked(facts: Iterable[ImageFact]) -> str:
    """The operating system to which a pod is kept that has images for any architecture; empty if it has none."""
    return next((fact.os for fact in facts if isinstance(fact, Anywhere)), "")


def is_unresolved(fact: ImageFact) -> bool:
    """Whether the image's platforms are not known."""
    return isinstance(fact, _UNRESOLVED)


class Fit(enum.Enum):
    """Whether a pod's images run on one platform."""

    YES = "yes"
    NO = "no"
    UNRESOLVED = "unresolved"


def images_of(pod: Pod, runtime_classes: Mapping[str, RuntimeClass] = NO_RUNTIME_CLASSES) -> tuple[PodImage, ...]:
    """The pod's images without repeats, in pod order: containers, init, ephemeral, then image volumes.

    A pod that names more than 256, repeats included, has `MANY_IMAGES` alone.
    `runtime_classes` has those of which the operator says what they mean, by name.
    A container without an image is kept as the empty reference, which is invalid and so unknown. An image volume
    without a reference is left out, as it names nothing yet.
    """
    spec = pod.spec
    if spec is None:
        return ()
    os = spec.os.name if spec.os else ""
    runtime = runtime_classes.get(spec.runtime_class_name) if spec.runtime_class_name else None
    has_handler = bool(spec.runtime_class_name) and runtime is None
    containers = spec.containers or ()
    if spec.init_containers or spec.ephemeral_containers:
        containers = (*containers, *(spec.init_containers or ()), *(spec.ephemeral_containers or ()))
    mounted = [image for volume in spec.volumes or () if (image := volume.image) and image.reference]
    if len(containers) + len(mounted) > MOST_IMAGES:
        return (PodImage(MANY_IMAGES, os=os, runtime=runtime, has_handler=has_handler),)
    found = [
        PodImage(
            each.image or "",
            role_of(each, spec.volumes) if each.command else Role.CONTAINER,  # as most are, which is cheap to see
            each.image_pull_policy or "",
            os,
            runtime,
            has_handler,
        )
        for each in containers
    ]
    if mounted:
        found += [
            PodImage(each.reference or "", Role.VOLUME, each.pull_policy or "", os, runtime, has_handler)
            for each in mounted
        ]
    return tuple(dict.fromkeys(found))


def role_of(container: Container, volumes: Sequence[Volume] | None) -> Role:
    """How a container uses its image; `volumes` are its pod's. Beyond 1,024 volumes nothing is looked for in them.

    It is data if the container's own command names a program in a volume, such as a copier that an init container has
    put there. A script from a ConfigMap is no program: the image's shell runs it.
    """
    mount = program_mount(container)
    if mount is None or len(volumes or ()) > _MOST_VOLUMES:
        return Role.CONTAINER
    holds_texts = any(each.holds_texts for each in volumes or () if each.name == mount.name)
    return Role.CONTAINER if holds_texts else Role.DATA


_MOST_VOLUMES = 1024  # most pods have a handful, and an author may write a hundred thousand


def program_mount(container: Container) -> VolumeMount | None:
    """The mount in which a container's own command finds its program;

    None if it is the image's, or cannot be found out.
    """
    command, mounts = container.command, container.volume_mounts
    if not command or not mounts or "/" not in command[0]:
        return None
    program = command[0]
    if not program.startswith("/"):
        program = f"{container.working_dir or ''}/{program}"
        if not program.startswith("/") or not container.working_dir:
            return None
    program = _clean(program)
    found, longest = None, -1
    for mount in mounts:
        path = mount.mount_path
        if not (program.startswith(path) or "/." in path or "//" in path) and path[:1] == "/" != path[-1:]:
            continue  # as nearly all, which is cheap to see
        path = _clean(path)
        if len(path) > longest and program.startswith(path) and program[len(path) :][:1] in ("", "/"):
            found, longest = mount, len(path)
    return found


def _clean(path: str) -> str:
    """The path without a slash at its end and without parts that lead nowhere; empty for the root."""
    if "//" in path or "/." in path or not path.startswith("/"):
        path = posixpath.normpath(f"/{path}").replace("//", "/")
    return path.rstrip("/")


def facts_of(
    images: Sequence[PodImage],
    answers: Sequence[Answer],
    *,
    may_be_pending: bool,
    lists: Callable[[PodImage], bool] | None = None,
) -> list[ImageFact]:
    """The facts that follow from `answers`, one for each of `images` in order; `may_be_pending` as in `fact_of`.

    `lists`: whether nodes have a copy of an image that kubelets use without a registry.
    """
    return [
        fact_of(image, answer, may_be_pending=may_be_pending, lists=lists)
        for image, answer in zip(images, answers, strict=True)
    ]


def fact_of(
    image: PodImage, answer: Answer, *, may_be_pending: bool, lists: Callable[[PodImage], bool] | None = None
) -> ImageFact:
    """The fact that follows from `answer` for this use of the image.

    `may_be_pending` is false once the pod has waited long enough; then no fact is `Pending`. `lists` as in `facts_of`.
    """
    if isinstance(answer, Content):
        is_data = image.role is not Role.CONTAINER or answer.kind is Kind.DATA
        return _fact_of_data(image, answer) if is_data else _fact_of_program(image, answer)
    if image.reference == MANY_IMAGES:
        return Unknown(Cause.UNSUPPORTED, "so many are not looked up")
    failure = answer or Failure(Cause.LOOKING_UP, "its lookup has not ended yet")
    if image.pull_policy == "Never":
        return Unknown(Cause.NEVER_PULLED, "it is never pulled (imagePullPolicy: Never), so the node's copy decides")
    if lists and failure.cause in UNANSWERED and lists(image):
        return Unknown(Cause.ON_NODES, f"nodes have it, and no registry answers for it: {failure.detail}")
    if may_be_pending and failure.cause in RETRYABLE:
        return Pending(failure.cause, failure.detail)
    return Unknown(failure.cause, failure.detail)


def _fact_of_data(image: PodImage, content: Content) -> ImageFact:
    """Of an image that a node only pulls, for which an index must list the node's platform."""
    if image.role is Role.DATA and content.kind is Kind.ARTIFACT:
        return _unreadable(content)
    if not (content.kind in _REFUSING and content.states_platforms):
        return Anywhere(image.os)
    return _fact_of_program(image, content)


_REFUSING = frozenset({Kind.INDEX, Kind.STATED})
"""The kinds that keep an image from nodes which only pull it."""


def _unreadable(content: Content) -> Unknown:
    if content.kind is Kind.MANIFEST:
        return Unknown(Cause.UNSUPPORTED, "its configuration names no platform that is known")
    return Unknown(Cause.ARTIFACT, "it is an artifact, not an image that a container can run")


def _fact_of_program(image: PodImage, content: Content) -> ImageFact:
    if not content.platforms:
        return RunsOn(frozenset(), _NO_NODE) if content.states_platforms else _unreadable(content)
    if image.runtime is not None:
        return _fact_of_runtime(image.runtime, content, image.os)
    if _may_have_handler(image, content):
        return Unknown(Cause.UNSUPPORTED, _NEEDS_HANDLER)
    by_operator = content.kind is Kind.STATED
    if not image.os:  # as of nearly all
        return RunsOn(content.platforms, "", by_operator)
    chosen = of_system(content.platforms, image.os)
    asked = f"{image.os} (spec.os.name)" if chosen is not content.platforms else ""
    return RunsOn(chosen, asked, by_operator)


_NO_NODE = "any node (its entries need os.features)"
_NEEDS_HANDLER = "it is built for WebAssembly alone: placement.runtime_classes must say what the RuntimeClass runs"


def _may_have_handler(image: PodImage, content: Content) -> bool:
    """Whether a RuntimeClass of which nothing is said may run the program; nodes match an index without one."""
    return (
        (image.has_handler or content.kind is Kind.MANIFEST)
        and image.role is Role.CONTAINER
        and all(map(needs_handler, content.platforms))
    )


def _fact_of_runtime(runtime: RuntimeClass, content: Content, os: str) -> ImageFact:
    """Whether the runtime runs the image. If so, on any node: which nodes have the runtime its RuntimeClass says."""
    if any(runs_on(content.platforms, each, Compatibility()) for each in runtime.platforms):
        return Anywhere(os)
    words = ", ".join(map(str, sorted(runtime.platforms)))
    return RunsOn(frozenset(), f"{words} (RuntimeClass {runtime.name})")


def of_system(platforms: frozenset[Platform], os: str) -> frozenset[Platform]:
    """Those of one operating system; the platforms themselves if they all are, or `os` is empty."""
    if not os or all(platform.os == os for platform in platforms):
        return platforms
    return frozenset(platform for platform in platforms if platform.os == os)


def system_of(images: Sequence[PodImage]) -> str:
    """The operating system for which the pod with these images says that it is; empty if it says nothing."""
    return images[0].os if images else ""


def fit(facts: Sequence[ImageFact], platform: Platform, compatibility: Compatibility) -> Fit:
    """Whether a pod of these images runs on `platform`. O(images × their platforms).

    NO if one image is known not to run, even if others are unknown; YES if all are known to run; else UNRESOLVED.
    """
    found = Fit.YES
    for fact in facts:
        if isinstance(fact, RunsOn):
            if not runs_on(fact.platforms, platform, compatibility):
                return Fit.NO
        elif isinstance(fact, _UNRESOLVED):
            found = Fit.UNRESOLVED
        elif fact.os and fact.os != platform.os:  # a kubelet of another system refuses the pod
            return Fit.NO
    return found
