"""Has the events of a plan happen: one function, by the kind of the event."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from tests.worlds.api_errors import ApiError
from tests.worlds.api_server import HOST, MERGE_PATCH, STRATEGIC_MERGE_PATCH
from tests.worlds.circumstances import Circumstances, config_of
from tests.worlds.installation import install, refuse_patches
from tests.worlds.lives import copied
from tests.worlds.objects import secret_object
from tests.worlds.plan import (
    LEADER,
    AnyEvent,
    ApiFault,
    Applied,
    Deleted,
    Fault,
    FetcherStopped,
    GateRemoved,
    ImagePushed,
    ImageRemoved,
    LabelRemoved,
    Manifest,
    NamespaceAnnotated,
    NetworkFault,
    NodeAdded,
    NodeChanged,
    NodeRemoved,
    PatchRefused,
    PodImageChanged,
    RegistryFault,
    ReplicaKilled,
    ReplicaTerminated,
    RightDenied,
    Scaled,
    SecretChanged,
    SettingsChanged,
    WatchFault,
)
from tests.worlds.probes import KUBELET
from tests.worlds.truth import LABEL

_ADMIN = "admin"


async def happen(world: Circumstances, event: AnyEvent) -> None:
    """Has the event happen, and what is wrong through it end after its time."""
    if isinstance(event, ReplicaKilled | ReplicaTerminated) and event.replica == LEADER:
        event = msgspec.structs.replace(event, replica=world.leader())
    world.trace("plan", type(event).__name__, **_shown(event))
    world.wrongs.note(event)
    await _HAPPENINGS[type(event)](world, event)


async def _quietly(world: Circumstances, work: Awaitable[object]) -> str:
    """What the API server refuses it for; empty if it does not."""
    try:
        await work
    except ApiError as exc:
        world.trace("plan", "refused", why=str(exc))
        return str(exc)
    return ""


async def _apply(world: Circumstances, event: Applied) -> None:
    metadata = event.manifest["metadata"]
    for _ in range(event.times):
        before = world.api.get(event.kind, metadata["namespace"], metadata["name"])
        manifest = copied(event.manifest)
        if event.by == "create":
            work = world.api.create(event.kind, manifest, user=_ADMIN, manager="kubectl-create")
        elif event.by == "client-apply":
            work = world.api.client_apply(event.kind, manifest, user=_ADMIN)
        else:
            work = world.api.apply(event.kind, manifest, user=_ADMIN, manager="kubectl")
        error = await _quietly(world, work)
        after = world.api.get(event.kind, metadata["namespace"], metadata["name"])
        for note in world.on_applied:
            note(event, before, after, error)


async def _change_node(world: Circumstances, event: NodeChanged) -> None:
    body: Manifest = {"metadata": {"labels": event.labels}}
    if event.taints is not None:
        body["spec"] = {"taints": list(event.taints)}
    world.joined_at[event.name] = world.now
    await _quietly(world, world.api.patch("Node", "", event.name, body, MERGE_PATCH, user=_ADMIN, manager="label"))


async def _annotate(world: Circumstances, event: NamespaceAnnotated) -> None:
    body = {"metadata": {"annotations": event.annotations}}
    await _quietly(
        world, world.api.patch("Namespace", "", event.name, body, MERGE_PATCH, user=_ADMIN, manager="annotate")
    )
    stored = world.api.get("Namespace", "", event.name)
    annotations = dict((stored or {"metadata": {}})["metadata"].get("annotations") or {})
    world.namespace_history.setdefault(event.name, [(-1000.0, {})]).append((world.now, annotations))
    for note in world.on_annotated:
        note(event.name, dict(event.annotations))


async def _change_secret(world: Circumstances, event: SecretChanged) -> None:
    secret = event.secret
    world.contents.set_secret(secret)
    is_there = world.api.get("Secret", secret.namespace, secret.name) is not None
    if not secret.logins:
        if is_there:
            await _quietly(world, world.api.delete("Secret", secret.namespace, secret.name))
        return
    work = world.api.update if is_there else world.api.create
    await _quietly(world, work("Secret", secret_object(secret), user=_ADMIN))


async def _change_pods(world: Circumstances, event: PodImageChanged | GateRemoved | LabelRemoved) -> None:
    for pod in world.api.list("Pod", event.namespace):
        name = pod["metadata"]["name"]
        life = world.lives.of(pod["metadata"]["uid"])
        if pod["spec"].get("nodeName"):
            continue
        body: Manifest = {"metadata": {"labels": {LABEL: None}}}
        if isinstance(event, PodImageChanged):
            first = pod["spec"]["containers"][0]["name"]
            body = {"spec": {"containers": [{"name": first, "image": event.image}]}}
        elif isinstance(event, GateRemoved):
            body = {"spec": {"schedulingGates": [{"$patch": "delete", "name": event.name}]}}
        if life and not isinstance(event, GateRemoved):
            life.is_restored = False
        await _quietly(
            world,
            world.api.patch("Pod", event.namespace, name, body, STRATEGIC_MERGE_PATCH, user=_ADMIN, manager="other"),
        )


async def _replace(world: Circumstances, event: ReplicaKilled | ReplicaTerminated | SettingsChanged) -> None:
    if isinstance(event, SettingsChanged):
        numbers = list(range(len(world.replicas)))
        world.settings = (*world.settings, *event.settings)
        world.settings_since = world.now
    else:
        numbers = [event.replica] if event.replica < len(world.replicas) else []
    for number in numbers:
        replica = world.replicas[number]
        if not replica.is_running or replica in world.ending:
            continue
        world.ending.append(replica)
        if isinstance(event, ReplicaKilled):
            replica.kill()
        else:
            if world.election:  # kube-scheduler is in the same pod
                world.election.resign(number)
            grace = world.config.shutdown.grace_seconds
            seconds = await replica.terminate()
            for note in world.on_terminated:
                note(seconds, grace)
        await world.start_replica(number)
    if isinstance(event, SettingsChanged):
        world.config = config_of(world.settings, world.plan.mode)
        world.settings_since = world.now
        install(world.api, world.plan.mode, settings=world.settings, kubernetes=world.plan.kubernetes)


async def _for_a_while(event: Fault, begin: Callable[[], None], end: Callable[[], None]) -> None:
    begin()
    await asyncio.sleep(event.seconds)
    end()


async def _fail_registry(world: Circumstances, event: RegistryFault) -> None:
    registries = world.registries
    await _for_a_while(
        event,
        lambda: registries.fault(event.host, event.what, event.amount),
        lambda: registries.heal(event.host, event.what),
    )


async def _deny(world: Circumstances, event: RightDenied) -> None:
    verb, resource = event.verb, event.resource
    deny = world.requests.deny
    await _for_a_while(event, lambda: deny(verb, resource), lambda: deny(verb, resource, on=False))


async def _fail_watches(world: Circumstances, event: WatchFault) -> None:
    requests, resource = world.requests, event.resource
    if event.what == "cut":
        requests.watch_cut(resource)
    elif event.what == "compacted":
        requests.compact()
        requests.watch_cut(resource)
    else:
        silence = requests.watch_silence
        await _for_a_while(event, lambda: silence(resource), lambda: silence(resource, on=False))


async def _fail_api(world: Circumstances, event: ApiFault) -> None:
    act = world.requests.slow if event.what == "slow" else world.requests.errors
    await _for_a_while(event, lambda: act(event.amount), lambda: act(0.0))


async def _refuse_patches(world: Circumstances, event: PatchRefused) -> None:
    api = world.api
    await _for_a_while(event, lambda: refuse_patches(api, whole=event.whole), lambda: refuse_patches(api, on=False))


async def _stop_fetcher(world: Circumstances, event: FetcherStopped) -> None:
    if event.replica < len(world.replicas):
        world.replicas[event.replica].stop_fetcher(event.seconds)


async def _disturb(world: Circumstances, event: NetworkFault) -> None:
    if event.replica >= len(world.replicas):
        return
    network, own = world.network, world.replicas[event.replica].address
    if event.party == "callers":  # kube-scheduler is in the same pod, or on the same node
        ways = [(own, HOST), (own, KUBELET)]
    else:
        ways = [(HOST if event.party == "api" else world.registries.addresses[event.party], own)]
    if event.what == "cut":
        for host, of in ways:
            network.cut(host, of=of)
        return
    act = network.refuse if event.what == "refused" else network.silence

    def set_all(on: bool) -> None:
        for host, of in ways:
            act(host, on, of=of)

    await _for_a_while(event, lambda: set_all(True), lambda: set_all(False))


async def _delete(world: Circumstances, event: Deleted) -> None:
    await _quietly(world, world.api.delete(event.kind, event.namespace, event.name))


async def _scale(world: Circumstances, event: Scaled) -> None:
    body = {"spec": {"replicas": event.replicas}}
    patch = world.api.patch
    work = patch(event.kind, event.namespace, event.name, body, MERGE_PATCH, user=_ADMIN, manager="scale")
    await _quietly(world, work)


async def _add_node(world: Circumstances, event: NodeAdded) -> None:
    world.joined_at[event.node.name] = world.now
    await _quietly(world, world.kubelets.add_node(event.node))


async def _remove_node(world: Circumstances, event: NodeRemoved) -> None:
    if world.api.get("Node", "", event.name):
        await world.kubelets.remove_node(event.name)


async def _push(world: Circumstances, event: ImagePushed) -> None:
    world.registries.push(event.image)
    world.contents.push(event.image)


async def _remove_image(world: Circumstances, event: ImageRemoved) -> None:
    world.registries.remove(event.host, event.repository, event.image_tag)
    world.contents.remove(f"{event.host}/{event.repository}:{event.image_tag}")


_HAPPENINGS: Mapping[type, Callable[[Circumstances, Any], Awaitable[None]]] = {
    Applied: _apply,
    Deleted: _delete,
    Scaled: _scale,
    NodeAdded: _add_node,
    NodeRemoved: _remove_node,
    NodeChanged: _change_node,
    NamespaceAnnotated: _annotate,
    ImagePushed: _push,
    ImageRemoved: _remove_image,
    SecretChanged: _change_secret,
    PodImageChanged: _change_pods,
    GateRemoved: _change_pods,
    LabelRemoved: _change_pods,
    RegistryFault: _fail_registry,
    RightDenied: _deny,
    WatchFault: _fail_watches,
    ApiFault: _fail_api,
    NetworkFault: _disturb,
    PatchRefused: _refuse_patches,
    FetcherStopped: _stop_fetcher,
    ReplicaKilled: _replace,
    ReplicaTerminated: _replace,
    SettingsChanged: _replace,
}


def _shown(event: AnyEvent) -> dict[str, object]:
    fields = msgspec.to_builtins(event)
    if "manifest" in fields:
        fields["manifest"] = "/".join(fields["manifest"]["metadata"][key] for key in ("namespace", "name"))
    return {key: value for key, value in fields.items() if key not in ("at", "event")}
