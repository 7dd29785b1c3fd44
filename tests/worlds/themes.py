"""What worlds are about: one function a theme, which draws its events, and the faults that overlap them.

A theme follows a feature. Faults of its `faults` last from a moment to longer than the limit by which pods are held.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from tests.worlds.choices import (
    HIGH_CLASS,
    POD_ANNOTATIONS,
    PRIVATE_HOST,
    PUBLIC_HOST,
    RUNTIME_CLASSES,
    SECOND_SCHEDULER,
)
from tests.worlds.drawing import (
    LOGINS,
    MULTI,
    ODD,
    OTHER_TAINT,
    PULL_SECRET,
    QUOTA_GATE,
    TEAMS,
    USUAL,
    Draw,
)
from tests.worlds.lives import copied
from tests.worlds.plan import (
    LEADER,
    AnyEvent,
    Deleted,
    GateRemoved,
    Image,
    ImagePushed,
    ImageRemoved,
    LabelRemoved,
    Mode,
    NamespaceAnnotated,
    Node,
    NodeAdded,
    NodeChanged,
    NodeRemoved,
    PatchRefused,
    PodImageChanged,
    ReplicaKilled,
    ReplicaTerminated,
    RightDenied,
    Scaled,
    Secret,
    SecretChanged,
    SettingsChanged,
    WatchFault,
)
from tests.worlds.truth import MODE, PREFIX

_LIMIT = "admission.gate.limit_seconds"
_OUTAGES = ("registry", "fetcher", "api", "network", "watch", "right", "replica")
_GATE = {"admission.unknown": '"gate"'}
_OPEN = {"registry.private_addresses": "true", "scheduler.pending": '"pass"', "scheduler.unknown": '"pass"'}
_GATING = (Mode.WEBHOOK, Mode.BOTH, Mode.POLICY)
_REVIEWING = (Mode.WEBHOOK, Mode.BOTH, Mode.SECOND, Mode.DEFAULT_AND_WEBHOOK)
_ASKED = (Mode.SECOND, Mode.DEFAULT, Mode.DEFAULT_AND_WEBHOOK)


class Theme(msgspec.Struct, frozen=True, kw_only=True):
    """What a world is about. `favourites` are the settings that its worlds mostly change, `forced` those they have.

    Of `variants`, more settings, each world has one. `odd`: there is a node of an unusual platform. `tainted` is the
    share of worlds whose arm64 nodes have a taint, `calm` that of worlds without a fault. `slots` is how many pods fit
    on a node.
    """

    events: Callable[[Draw], Iterator[AnyEvent]]
    faults: tuple[str, ...]
    modes: tuple[Mode, ...] = tuple(Mode)
    favourites: tuple[str, ...] = ()
    forced: Mapping[str, str] = {}
    variants: tuple[Mapping[str, str], ...] = ({},)
    odd: bool = False
    tainted: float = 0.3
    calm: float = 0.15
    slots: int = 30
    seconds: float = 120.0
    least_replicas: int = 1
    most_replicas: int = 2


def _pods(draw: Draw, number: int, images: Callable[[], Sequence[str]], share: float = 0.1) -> Iterator[AnyEvent]:
    for _ in range(number):
        yield draw.apply(draw.pod(images(), share=share, **draw.placement()))


def _gate(draw: Draw) -> Iterator[AnyEvent]:
    """Pods are held for images that come late, that a registry does not give, or that never come."""
    late = [draw.image() for _ in range(3)]
    for image in late[:2]:
        yield ImagePushed(at=draw.when(), image=image)
    for _ in range(draw.one((4, 6, 8))):
        images = draw.one(([draw.known()], [draw.one(late).reference], [draw.known(), draw.one(late).reference]))
        if draw.maybe(0.4):
            yield draw.apply(draw.workload("Deployment", images, **draw.placement()))
        else:
            yield draw.apply(draw.pod(images, **draw.placement()))
    if draw.maybe(0.3):
        yield draw.annotate()
    if draw.maybe(0.4):
        released = draw.one(({f"{PREFIX}unknown": "pass"}, {f"{PREFIX}mode": "observe"}, {f"{PREFIX}mode": "ignore"}))
        yield NamespaceAnnotated(at=draw.when(20.0), name=draw.team(), annotations=dict(released))


def _late(draw: Draw) -> Iterator[AnyEvent]:
    """Images come late, and nothing else is wrong: who was held for them ends as one who comes afterwards."""
    late = [draw.image() for _ in range(3)]
    for image in late:
        yield ImagePushed(at=draw.when(20.0, 60.0), image=image)
    for _ in range(draw.one((7, 9))):
        images = draw.one(([draw.one(late).reference], [draw.known(), draw.one(late).reference]))
        if draw.maybe(0.3):
            yield draw.apply(draw.workload("Deployment", images, share=0.05, **draw.placement()), draw.when(2.0, 60.0))
        else:
            yield draw.apply(draw.pod(images, share=0.05, **draw.placement()), draw.when(2.0, 60.0))


def _limit(draw: Draw) -> Iterator[AnyEvent]:
    """What others do with pods that wait: their own gates, the label, another image."""
    soon, late, never = draw.image(), draw.image(), draw.image()
    yield ImagePushed(at=draw.when(5.0, 15.0), image=soon)
    if draw.maybe(0.7):
        yield ImagePushed(at=draw.when(30.0, 60.0), image=late)
    for _ in range(draw.one((7, 9))):
        images = draw.one(([draw.known()], [draw.one((soon, late, never)).reference], [draw.known(), late.reference]))
        more = draw.placement()
        if draw.maybe(0.75):
            more["schedulingGates"] = [{"name": QUOTA_GATE}]
        yield draw.apply(draw.pod(images, **more), draw.when(1.0, 40.0))
    for team in TEAMS:
        yield GateRemoved(at=draw.when(95.0, 115.0), namespace=team, name=QUOTA_GATE)
    if draw.maybe(0.4):
        yield LabelRemoved(at=draw.when(), namespace=draw.team())
    if draw.maybe(0.3):
        yield PodImageChanged(at=draw.when(), namespace=draw.team(), image=draw.known())


def _unable(draw: Draw) -> Iterator[AnyEvent]:
    """Nobody may remove a gate, or sees whose, for longer than it takes to notice; pods come before and afterwards.

    Where none comes before, no removal fails, and what the API server says of rights is all there is to notice.
    """
    late = [draw.image() for _ in range(2)]
    yield ImagePushed(at=draw.when(30.0, 60.0), image=late[0])
    is_first = draw.maybe(0.3)
    before = (*((2.0, 12.0),) * 3, *((21.0, 35.0),) * 2, *((50.0, 120.0),) * 5)
    for first, last in () if is_first else before:
        yield draw.apply(draw.pod([draw.one(late).reference], share=0.0, **draw.placement()), draw.when(first, last))
    for _ in range(8):  # of the one that is never there
        yield draw.apply(draw.pod([late[1].reference], share=0.0, **draw.placement()), draw.when(145.0, 185.0))
    at, seconds = draw.when(15.0, 20.0), 170.0
    faults: tuple[AnyEvent, ...] = (
        RightDenied(at=at, seconds=seconds, verb="patch", resource="pods"),
        RightDenied(at=at, seconds=seconds, verb="list", resource="pods"),
        WatchFault(at=at, seconds=seconds, resource="pods", what="silent"),
        PatchRefused(at=at, seconds=seconds, whole=True),
        PatchRefused(at=at, seconds=seconds, whole=True),
    )
    yield draw.one(faults[:2] if is_first else faults)


def _namespaces(draw: Draw) -> Iterator[AnyEvent]:
    """Namespaces that say something else while pods of theirs are held, and take it back; pods come soon afterwards."""
    for _ in range(6):
        yield draw.apply(draw.pod([draw.image().reference], share=0.0, **draw.placement()), draw.when(2.0, 25.0))
    for team in TEAMS:
        key, value = draw.one(((f"{PREFIX}unknown", "pass"), (MODE, "observe"), (MODE, "ignore")))
        for at, said in ((draw.when(40.0, 45.0), value), (draw.when(75.0, 80.0), None)):
            yield NamespaceAnnotated(at=at, name=team, annotations={key: said})
            for reference in (draw.known(), draw.known(), draw.image().reference):
                manifest = draw.pod([reference], team, share=0.0, **draw.placement())
                yield draw.apply(manifest, draw.when(at + 2.0, at + 25.0))


def _filter(draw: Draw) -> Iterator[AnyEvent]:
    """Many pods for a scheduler that asks, of images that were used before and of others."""
    for platforms in USUAL:
        yield draw.apply(draw.pod([draw.known(platforms)], share=0.0), 1.0)
    yield from _pods(draw, draw.one((8, 10, 12)), lambda: [draw.known() for _ in range(draw.one((1, 1, 2)))])
    if draw.maybe(0.5):
        late = draw.image()
        yield ImagePushed(at=draw.when(), image=late)
        yield from _pods(draw, 2, lambda: [late.reference])
    if draw.maybe(0.3):
        yield draw.annotate()


def _preempt(draw: Draw) -> Iterator[AnyEvent]:
    """Full nodes, and pods of a higher priority."""
    for at in (2.0, 3.0):
        manifest = draw.workload("Deployment", [draw.known(MULTI)], share=0.0)
        manifest["spec"]["replicas"] = 3 * len(draw.nodes) // 2
        yield draw.apply(manifest, at)
    used = [draw.known(platforms) for platforms in USUAL]
    for image in used:
        yield draw.apply(draw.pod([image], share=0.0), 1.0)
    for _ in range(8):
        image = draw.one((*used, draw.known()))
        yield draw.apply(draw.pod([image], share=0.05, priorityClassName=HIGH_CLASS), draw.when(25.0))


def _daemons(draw: Draw) -> Iterator[AnyEvent]:
    """DaemonSets, whose pods have their nodes from the start, and nodes that join."""
    for _ in range(draw.one((2, 3))):
        manifest = draw.workload("DaemonSet", [draw.known() for _ in range(draw.one((1, 1, 2)))], **draw.placement())
        if draw.maybe(0.5):
            manifest["spec"]["template"]["spec"]["tolerations"] = [{"operator": "Exists"}]
        yield draw.apply(manifest, by=draw.one(("create", "client-apply", "server-apply")), times=draw.one((1, 2)))
    everywhere = draw.workload("DaemonSet", [draw.known(draw.one(USUAL))], tolerations=[{"operator": "Exists"}])
    yield draw.apply(everywhere, 0.5)
    late = draw.image(draw.one(USUAL))
    yield draw.apply(draw.workload("DaemonSet", [late.reference]))
    yield ImagePushed(at=draw.when(), image=late)
    yield from _new_nodes(draw)


def _templates(draw: Draw) -> Iterator[AnyEvent]:
    """Objects with templates: their controllers make the pods, queues plan by them."""
    for _ in range(draw.one((4, 6))):
        kind = draw.one(("Deployment", "StatefulSet", "Job", "DaemonSet"))
        images = [draw.known() for _ in range(draw.one((1, 2)))]
        manifest = draw.workload(kind, images, share=0.2, **draw.placement())
        yield draw.apply(manifest, by=draw.one(("create", "client-apply", "server-apply")), times=draw.one((1, 2)))
        if kind != "Job" and draw.maybe(0.5):
            edited = copied(manifest)
            draw.images.append(draw.image())
            edited["spec"]["template"]["spec"]["containers"][0]["image"] = draw.images[-1].reference
            yield draw.apply(edited, draw.when(50.0, 100.0), by=draw.one(("client-apply", "server-apply")))
        if kind in ("Deployment", "StatefulSet") and draw.maybe(0.5):
            meta = manifest["metadata"]
            yield Scaled(
                at=draw.when(60.0, 100.0), kind=kind, namespace=meta["namespace"], name=meta["name"],
                replicas=draw.one((1, 4)),
            )  # fmt: skip


def _applied(draw: Draw) -> Iterator[AnyEvent]:
    """Manifests that are applied again, by either kind of apply."""
    for _ in range(draw.one((6, 8))):
        kind = draw.one(("Pod", "Pod", "Deployment", "DaemonSet", "Job"))
        images = [draw.known() for _ in range(draw.one((1, 2)))]
        manifest = (
            draw.pod(images, **draw.placement())
            if kind == "Pod"
            else draw.workload(kind, images, share=0.2, **draw.placement())
        )
        by = draw.one(("client-apply", "server-apply"))
        at = draw.when()
        yield draw.apply(manifest, at, by=by, times=2)
        if draw.maybe(0.6):
            yield draw.apply(manifest, draw.when(at + 5.0, 100.0), by=by)


def _observed(draw: Draw) -> Iterator[AnyEvent]:
    """Pods and namespaces that are observed or ignored, and some that are not any more."""
    late = draw.image()
    for _ in range(draw.one((6, 9))):
        images = draw.one(([draw.known()], [draw.known(), draw.known()], [late.reference]))
        mode = {MODE: draw.one(("observe", "ignore"))}
        if draw.maybe(0.6):
            manifest = draw.pod(images, share=0.0, **draw.placement())
            meta = manifest["metadata"]
        else:
            manifest = draw.workload(draw.one(("Deployment", "DaemonSet")), images, share=0.0, **draw.placement())
            meta = manifest["spec"]["template"]["metadata"]
        if draw.maybe(0.6):
            meta["annotations"] = mode
        yield draw.apply(manifest, by=draw.one(("create", "server-apply")), times=draw.one((1, 2)))
    guarded = draw.workload("DaemonSet", [draw.known(draw.one(USUAL[1:]))], share=0.0)
    guarded["spec"]["template"]["metadata"]["annotations"] = {MODE: draw.one(("observe", "ignore"))}
    yield draw.apply(guarded, draw.when(10.0, 20.0))
    yield ImagePushed(at=draw.when(), image=late)
    if draw.mode.has_verbs and draw.maybe(0.6):
        yield from _asked_before_nodes_are_known(draw)
    event = draw.annotate()
    mode_of_team = {MODE: draw.one(("observe", "ignore", None))}
    yield msgspec.structs.replace(event, annotations=mode_of_team)


def _asked_before_nodes_are_known(draw: Draw) -> Iterator[AnyEvent]:
    yield RightDenied(at=1.0, seconds=60.0, verb="list", resource="nodes")
    yield ReplicaKilled(at=5.0, replica=0)
    for _ in range(3):
        manifest = draw.pod([draw.known()], share=0.0)
        manifest["metadata"]["annotations"] = {MODE: "observe"}
        if draw.mode is Mode.SECOND:
            manifest["spec"]["schedulerName"] = SECOND_SCHEDULER
        yield draw.apply(manifest, draw.when(15.0, 50.0))


def _preference(draw: Draw) -> Iterator[AnyEvent]:
    """Pods for several architectures, with shares and preferences."""
    preferred = draw.one(POD_ANNOTATIONS[f"{PREFIX}prefer"])
    yield NamespaceAnnotated(at=1.0, name=draw.team(), annotations={f"{PREFIX}prefer": preferred})
    for _ in range(draw.one((3, 4))):
        manifest = draw.workload("Deployment", [draw.known(draw.one((MULTI, MULTI, USUAL[1])))], share=0.4)
        if draw.maybe(0.6):
            manifest["spec"]["template"]["metadata"].setdefault("annotations", {})[f"{PREFIX}prefer-share"] = "40%"
        yield draw.apply(manifest)
    for _ in range(4):
        yield draw.apply(draw.pod([draw.known(MULTI)], share=0.4), by="server-apply", times=draw.one((1, 2)))
    yield draw.annotate()


def _private(draw: Draw) -> Iterator[AnyEvent]:
    """Images that one namespace may pull, and secrets that come, change and go."""
    for team in TEAMS:
        is_there = draw.maybe(0.8)
        if is_there:
            login = LOGINS[team] if draw.maybe(0.85) else "a:wrong"
            draw.secrets.append(Secret(namespace=team, name=PULL_SECRET, logins={PRIVATE_HOST: login}))
        if not is_there or draw.maybe(0.4):
            yield SecretChanged(
                at=draw.when(),
                secret=Secret(namespace=team, name=PULL_SECRET, logins={PRIVATE_HOST: LOGINS[team]}),
            )
        if draw.maybe(0.3):  # rotated, while the registry's own account stays
            logins = draw.one(({PRIVATE_HOST: "a:wrong"}, {}))
            yield SecretChanged(at=draw.when(60.0), secret=Secret(namespace=team, name=PULL_SECRET, logins=logins))
    images = [draw.image(host=PRIVATE_HOST, login=LOGINS[team]) for team in TEAMS for _ in range(2)]
    draw.images += images
    for _ in range(draw.one((9, 12))):
        chosen = [draw.one(images).reference, *([draw.known()] if draw.maybe(0.3) else [])]
        secrets = [{"name": PULL_SECRET}] if draw.maybe(0.8) else []
        yield draw.apply(draw.pod(chosen, imagePullSecrets=secrets, **draw.placement()))
    for image in images:  # who may pull it has it known before another wants it
        for team in sorted(TEAMS, key=lambda team: LOGINS[team] != image.login):
            first, last, times = (1.0, 3.0, 1) if LOGINS[team] == image.login else (8.0, 60.0, 3)
            for _ in range(times):
                manifest = draw.pod([image.reference], team, share=0.0, imagePullSecrets=[{"name": PULL_SECRET}])
                yield draw.apply(manifest, draw.when(first, last))


def _tags(draw: Draw) -> Iterator[AnyEvent]:
    """Tags that move to other platforms, or go; pods come before and long after."""
    for _ in range(3):
        image = draw.image(draw.one(USUAL))
        draw.images.append(image)
        platforms = draw.one(USUAL)
        form = image.form if len(platforms) == 1 else "index"
        moved = msgspec.structs.replace(image, platforms=platforms, form=form, revision=1)
        at = draw.when(10.0, 60.0)
        if draw.maybe(0.85):
            yield ImagePushed(at=at, image=moved)
        else:
            yield ImageRemoved(at=at, host=image.host, repository=image.repository)
        for when in (
            draw.when(2.0, 20.0),
            draw.when(40.0, 100.0),
            draw.when(1000.0, 1040.0),
            draw.when(1040.0, 1080.0),
        ):
            yield draw.apply(draw.pod([image.reference], share=0.05), when)
        daemons = draw.workload("DaemonSet", [image.reference], share=0.0)
        yield draw.apply(daemons, 4.0, by="server-apply")
        restarted = copied(daemons)
        restarted["spec"]["template"]["metadata"]["annotations"] = {"kubectl.kubernetes.io/restartedAt": "later"}
        yield draw.apply(restarted, draw.when(1000.0, 1070.0), by="server-apply")


def _new_nodes(draw: Draw) -> Iterator[AnyEvent]:
    for _ in range(draw.one((1, 3, 6))):
        architecture = draw.one(("amd64", "arm64"))
        node = Node(
            name=draw.name("new"),
            architecture=architecture,
            labels={"zone": "one"},
            taints=(OTHER_TAINT,) if draw.maybe(0.2) else (),
            states=draw.one(("both", "nodeInfo")),
        )
        yield NodeAdded(at=draw.when(15.0), node=node)


def _nodes(draw: Draw) -> Iterator[AnyEvent]:
    """Nodes that join together, leave, and get other labels and taints."""
    yield from _pods(draw, draw.one((5, 8)), lambda: [draw.known()])
    yield draw.apply(draw.workload("Deployment", [draw.known()]))
    yield draw.apply(draw.workload("DaemonSet", [draw.known(draw.one(USUAL))]), 0.5)
    joined_at = draw.when(15.0, 45.0)
    if draw.mode.has_verbs and draw.maybe(0.5):  # the service sees none of them
        yield WatchFault(at=joined_at - 1.0, seconds=60.0, resource="nodes", what="silent")
        used = draw.known(MULTI)
        for when in (3.0, *(draw.when(joined_at + 3.0, joined_at + 50.0) for _ in range(3))):
            yield draw.apply(draw.pod([used], share=0.0), when)
    for number in range(draw.one((2, 8, 20))):
        node = Node(name=draw.name("joined"), architecture=draw.one(("amd64", "arm64")))
        yield NodeAdded(at=joined_at + number * draw.one((0.0, 0.1)), node=node)
    yield from _new_nodes(draw)
    for resource in ("nodes", "namespaces"):
        if draw.maybe(0.7):
            yield WatchFault(at=draw.when(), seconds=0.0, resource=resource, what="compacted")
    if draw.maybe(0.5):
        yield NodeRemoved(at=draw.when(), name=draw.one(draw.nodes).name)
    if draw.maybe(0.5):
        change: dict[str, str | None] = draw.one(({"zone": "two"}, {"zone": None}))
        yield NodeChanged(at=draw.when(), name=draw.one(draw.nodes).name, labels=change)


def _leading(draw: Draw) -> Iterator[AnyEvent]:
    """The Lease is there to be taken, by a replica that cannot see the cluster or by one that can."""
    late = [draw.image() for _ in range(2)]
    for image in late:
        yield ImagePushed(at=draw.when(30.0), image=image)
    for _ in range(draw.one((4, 6))):
        yield draw.apply(draw.pod(draw.one(([draw.known()], [draw.one(late).reference])), **draw.placement()))
    yield RightDenied(at=1.0, seconds=230.0, verb="list", resource=draw.one(("nodes", "namespaces")))
    at = draw.when(3.0, 20.0)
    yield ReplicaKilled(at=at, replica=draw.one((0, 1)))
    yield RightDenied(at=at + 10.0, seconds=25.0, verb="patch", resource="leases")


def _takeover(draw: Draw) -> Iterator[AnyEvent]:
    """Pods that are held while nobody leads, and are past their limit once somebody does, to whom they are new.

    Or nobody may write the Lease, for longer than the limit.
    """
    at = draw.when(3.0, 20.0)
    is_led = draw.maybe(0.8)
    if is_led:
        yield ReplicaKilled(at=at, replica=LEADER)
    else:
        yield RightDenied(at=at, seconds=90.0, verb="patch", resource="leases")
    for _ in range(6):
        manifest = draw.pod([draw.known(draw.one(USUAL))], share=0.0, **draw.placement())
        yield draw.apply(manifest, draw.when(at + 0.5, at + (4.5 if is_led else 30.0)))
    yield from _pods(draw, 3, lambda: [draw.known()])


def _rollout(draw: Draw) -> Iterator[AnyEvent]:
    """Replicas that end and start, with other settings at times."""
    late = draw.image()
    yield ImagePushed(at=draw.when(), image=late)
    yield from _pods(draw, draw.one((6, 9)), lambda: draw.one(([draw.known()], [late.reference])))
    for _ in range(draw.one((4, 5))):
        at, replica = draw.when(10.0), draw.one((0, LEADER))
        yield ReplicaKilled(at=at, replica=replica) if draw.maybe(0.3) else ReplicaTerminated(at=at, replica=replica)
        for image in (draw.known(), late.reference):  # who is held and asked about meanwhile
            yield draw.apply(draw.pod([image], share=0.0), draw.when(at - 1.0, at + 2.0))
    if draw.maybe(0.7):
        changes = ("admission.unknown=pass", "admission.unknown=gate", "placement.mode=observe")
        change = f"{_LIMIT}=12" if draw.mode.has_policy else draw.one(changes)
        yield SettingsChanged(at=draw.when(20.0), settings=(change,))


def _impossible(draw: Draw) -> Iterator[AnyEvent]:
    """Pods for which no node can be right: no platform in common, or one that their own selector excludes."""
    amd, arm = draw.known(("linux/amd64",)), draw.known(("linux/arm64",))
    late = draw.image(("linux/arm64",))
    yield ImagePushed(at=draw.when(), image=late)
    for _ in range(draw.one((7, 9))):
        images = draw.one(([amd, arm], [amd, arm], [amd, late.reference], [draw.known()], [arm]))
        more = draw.placement()
        if draw.maybe(0.4):
            more["nodeSelector"] = {"kubernetes.io/arch": draw.one(("amd64", "s390x", "arm64"))}
        if draw.maybe(0.3):
            yield draw.apply(draw.workload(draw.one(("Deployment", "DaemonSet", "Job")), images, **more))
        else:
            yield draw.apply(draw.pod(images, **more), by=draw.one(("create", "server-apply")), times=draw.one((1, 2)))


def _platforms(draw: Draw) -> Iterator[AnyEvent]:
    """Unusual platforms, forms of images, RuntimeClasses, pull policies, image volumes."""
    for _ in range(draw.one((7, 10))):
        image = draw.image(draw.one((*ODD, *USUAL)))
        if draw.maybe(0.1):
            image = Image(host=PUBLIC_HOST, repository=image.repository, form="artifact")
        draw.images.append(image)
        more = draw.placement()
        if draw.maybe(0.2):
            more["runtimeClassName"] = draw.one(RUNTIME_CLASSES)
        manifest = draw.pod([image.reference, *([draw.known()] if draw.maybe(0.3) else [])], **more)
        if draw.maybe(0.15):
            manifest["spec"]["containers"][0]["imagePullPolicy"] = draw.one(("Never", "Always"))
        if draw.maybe(0.2):
            volume = {"name": "data", "image": {"reference": draw.known(draw.one((MULTI, USUAL[1])))}}
            manifest["spec"]["volumes"] = [volume]
        yield draw.apply(manifest)


def _injected(draw: Draw) -> Iterator[AnyEvent]:
    """Another webhook adds a sidecar to each pod after ours, so that ours sees it a second time."""
    yield from _pods(draw, draw.one((5, 7)), lambda: [draw.known()])
    yield draw.apply(draw.workload("Deployment", [draw.known()], **draw.placement()))
    yield draw.apply(draw.workload("DaemonSet", [draw.known()]))


def _arming(draw: Draw) -> Iterator[AnyEvent]:
    """The policy alone or beside the webhook, from before it is in force."""
    yield from _pods(draw, draw.one((5, 7)), lambda: [draw.known()])
    yield from _pods(draw, 2, lambda: [draw.image().reference])
    manifest = draw.workload("Deployment", [draw.known()])
    yield draw.apply(manifest, 3.0)
    meta = manifest["metadata"]
    yield Deleted(at=draw.when(60.0), kind="Deployment", namespace=meta["namespace"], name=meta["name"])


THEMES: Mapping[str, Theme] = {
    "gate": Theme(
        events=_gate, faults=_OUTAGES, modes=_GATING, forced=_GATE,
        favourites=(_LIMIT, "admission.wait_seconds"), tainted=0.5,
    ),
    "late": Theme(
        events=_late, faults=("watch", "replica"), forced={**_GATE, "placement.mode": '"enforce"'},
        modes=(Mode.WEBHOOK, Mode.BOTH, Mode.DEFAULT_AND_WEBHOOK, Mode.SECOND),
        favourites=("admission.tolerations", "admission.node_affinity", "admission.platforms_annotation"),
        tainted=0.5, calm=0.9,
    ),
    "limit": Theme(
        events=_limit, faults=(*_OUTAGES, "refused"), modes=_GATING, forced=_GATE, calm=0.25,
        favourites=("scheduler.unknown", "scheduler.assume"), variants=({_LIMIT: "20"}, {_LIMIT: "8"}, {_LIMIT: "60"}),
    ),
    "unable": Theme(
        events=_unable, faults=("registry",), modes=(Mode.WEBHOOK, Mode.DEFAULT_AND_WEBHOOK, Mode.SECOND), forced=_GATE,
        variants=({_LIMIT: "20"}, {_LIMIT: "60"}, {_LIMIT: "300"}), seconds=240.0,
    ),
    "namespaces": Theme(
        events=_namespaces, faults=("registry", "fetcher"), modes=(*_GATING, Mode.DEFAULT_AND_WEBHOOK), forced=_GATE,
        calm=0.5,
    ),
    "filter": Theme(
        events=_filter, faults=("registry", "network", "watch", "replica", "fetcher"), modes=_ASKED,
        favourites=("scheduler.pending", "scheduler.unknown", "scheduler.wait_seconds", "scheduler.assume"), odd=True,
        calm=0.6,
    ),
    "preempt": Theme(
        events=_preempt, faults=("registry", "watch"), modes=_ASKED, slots=3, tainted=0.0, calm=0.7,
        forced={"placement.mode": '"enforce"'}, favourites=("admission.node_affinity", "scheduler.pending"),
    ),
    "daemons": Theme(
        events=_daemons, faults=("registry", "watch", "network", "replica"), calm=0.5,
        modes=(Mode.WEBHOOK, Mode.BOTH, Mode.DEFAULT_AND_WEBHOOK, *_REVIEWING),
        forced={"admission.guard_daemon_sets": "true", "placement.mode": '"enforce"'},
        favourites=("admission.impossible", "admission.unknown"),
    ),
    "templates": Theme(
        events=_templates, faults=("registry", "api", "replica"), modes=_REVIEWING,
        favourites=("admission.node_affinity", "admission.tolerations", "admission.guard_daemon_sets"), tainted=0.5,
    ),
    "applied": Theme(
        events=_applied, faults=("registry", "replica"), modes=_REVIEWING,
        favourites=("admission.node_affinity", "admission.platforms_annotation", "admission.guard_daemon_sets"),
        tainted=0.5, calm=0.4,
    ),
    "observed": Theme(
        events=_observed, faults=("registry", "watch", "fetcher"),
        favourites=("admission.unknown", "admission.guard_daemon_sets", "placement.mode", "admission.impossible"),
        variants=({}, {"admission.guard_daemon_sets": "true"}), tainted=0.5,
    ),
    "preference": Theme(
        events=_preference, faults=("registry", "replica"), modes=(*_REVIEWING, Mode.DEFAULT),
        favourites=("placement.preference", "placement.preference_by", "admission.node_affinity"), calm=0.5,
    ),
    "private": Theme(
        events=_private, faults=("registry", "secrets", "fetcher", "replica"), calm=0.3,
        favourites=("registry.docker_config",),
        variants=(_OPEN, {"registry.pull_secrets": "false"}, _OPEN, {**_OPEN, "registry.pull_secrets": '["team-a"]'}),
    ),
    "tags": Theme(
        events=_tags, faults=("registry", "fetcher"), seconds=1090.0, forced={_LIMIT: "60"}, calm=0.5,
        modes=(*_REVIEWING, Mode.WEBHOOK, Mode.DEFAULT), variants=({"admission.guard_daemon_sets": "true"}, {}),
    ),
    "nodes": Theme(
        events=_nodes, faults=("watch", "api", "network", "replica"), favourites=("admission.node_affinity",),
        variants=({}, {"admission.guard_daemon_sets": "true"}),
    ),
    "rollout": Theme(
        events=_rollout, faults=("api", "network", "registry"), favourites=(_LIMIT, "shutdown.grace_seconds"),
        most_replicas=3, modes=(*_GATING, Mode.SECOND), calm=0.6,
    ),
    "leading": Theme(
        events=_leading, faults=("registry", "fetcher"), modes=_GATING, forced=_GATE,
        least_replicas=2, seconds=240.0,
    ),
    "takeover": Theme(
        events=_takeover, faults=("registry", "fetcher"), modes=(Mode.POLICY,),
        forced={_LIMIT: "8", "placement.mode": '"enforce"', "admission.node_affinity": '"required"'},
        favourites=("admission.tolerations",), least_replicas=2, calm=0.9,
    ),
    "impossible": Theme(
        events=_impossible, faults=("registry", "api", "refused"), modes=(*_GATING, Mode.SECOND), calm=0.5,

        favourites=("admission.impossible", "admission.unknown", "admission.node_affinity", _LIMIT),
        variants=({}, {**_GATE, "admission.impossible": '"deny"', "admission.node_affinity": '"preferred"'}),
    ),
    "platforms": Theme(
        events=_platforms, faults=("registry",), odd=True,
        favourites=("placement.compatibility", "placement.runtime_classes", "admission.unknown", "scheduler.unknown"),
    ),
    "injected": Theme(events=_injected, faults=("registry", "network"), modes=_REVIEWING,
                      favourites=("admission.unknown", "admission.node_affinity")),
    "arming": Theme(
        events=_arming, faults=("right", "api", "watch", "registry", "replica"), modes=(Mode.POLICY, Mode.BOTH),
        favourites=(_LIMIT,),
    ),
}  # fmt: skip
