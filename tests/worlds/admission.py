"""Admission: what policies and webhooks make of a request, in kube-apiserver's order, and what they refuse.

Sources: k8s.io/apiserver/pkg/admission/reinvocation.go, and the reinvocation contexts of the plugins for webhooks and
policies. One pass has the API server's own plugins, then mutating policies, then mutating webhooks by their
configurations' names. A second pass follows once, in which those run again that ask for it and had run before something
changed. Validating policies come last. Limits: ValidatingWebhookConfigurations are not played, and configurations take
effect after one second, as was seen on 1.36.
"""

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from tests.worlds.admission_policies import BoundPolicy, bind
from tests.worlds.admission_rules import Request
from tests.worlds.api_errors import internal_error
from tests.worlds.api_kinds import Document
from tests.worlds.api_storage import Storage, copied
from tests.worlds.defaulting import admit, normalize, set_defaults
from tests.worlds.trace import Trace
from tests.worlds.webhook_calls import CallFailed, Post, Webhook

_EFFECTIVE_SECONDS = 1.0  # after a change of a configuration, seen 0.7 to 1.0 on kube-apiserver 1.36
_WATCHED = (
    "MutatingWebhookConfiguration",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
)
_SIDECAR = "injected-sidecar"


class _Hook(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def is_reinvoked(self) -> bool: ...


_H = TypeVar("_H", bound=_Hook)


class _Invocations:
    """Which hooks of one plugin are to run again in the second pass."""

    def __init__(self) -> None:
        self._earlier: list[str] = []
        self._again: list[str] = []
        self._output: Document | None = None

    def begin(self, document: Document, *, is_second: bool) -> None:
        """A pass begins; what others changed since the last one has hooks run again."""
        if is_second and document != self._output:
            self.changed()

    def may_run(self, hook: _Hook, *, is_second: bool) -> bool:
        """Whether the hook runs in this pass: in the second one only if it ran before and is to run again."""
        return not is_second or hook.name in self._again

    def ran(self, hook: _Hook, *, has_changed: bool) -> None:
        """The hook has run."""
        if has_changed:
            self.changed()
        if hook.is_reinvoked:
            self._earlier.append(hook.name)

    def changed(self) -> None:
        """Something changed, so those that ran before it are to run again."""
        self._again += self._earlier
        self._earlier = []

    def end(self, document: Document) -> None:
        """The pass of this plugin has ended with that."""
        self._output = document


class _Injector:
    """Another webhook, which adds a sidecar to each new pod; it is part of the model and not asked over HTTP."""

    name = "sidecars.example.com"
    configuration = "sidecars"
    is_reinvoked = False
    fails_open = True

    def __init__(self, image: str) -> None:
        self._image = image

    def applies(self, request: Request) -> bool:
        """For pods at their creation, once."""
        if request.kind.name != "Pod" or request.operation != "CREATE" or request.namespace == "kube-system":
            return False
        return all(each.get("name") != _SIDECAR for each in request.document["spec"].get("containers") or ())

    async def call(self, request: Request, _uid: str, _post: Post, complete: Callable[[Document], Document]) -> bool:
        """Adds the container."""
        spec = request.document["spec"]
        sidecar = {"name": _SIDECAR, "image": self._image}
        document = {**request.document, "spec": {**spec, "containers": [*spec["containers"], sidecar]}}
        request.document = complete(document)
        return True


class Admission:
    """The plugins of one API server. `endpoints` gives the hosts of the ready replicas behind a Service's name."""

    def __init__(self, storage: Storage, post: Callable[[str], Post], trace: Trace, chance: random.Random) -> None:
        """`post` gives what sends to a host."""
        self.endpoints: Callable[[], list[str]] = list
        self._storage = storage
        self._post = post
        self._trace = trace
        self._chance = chance
        self._injectors: list[_Injector] = []
        self._webhooks: list[Webhook | _Injector] = []
        self._mutating: list[BoundPolicy] = []
        self._validating: list[BoundPolicy] = []
        for kind in _WATCHED:
            storage.subscribe(kind, lambda *_: self._refresh_later())

    def inject(self, image: str) -> None:
        """Has another webhook, called after ours, add a sidecar of the image to each new pod."""
        self._injectors.append(_Injector(image))
        self.refresh()

    def refresh(self) -> None:
        """Takes notice of configurations and policies as they are stored now."""
        webhooks: list[Webhook | _Injector] = [
            Webhook(configuration["metadata"]["name"], spec)
            for configuration in self._all("MutatingWebhookConfiguration")
            for spec in configuration.get("webhooks") or ()
        ]
        self._webhooks = sorted([*webhooks, *self._injectors], key=lambda hook: hook.configuration)
        self._mutating = bind(self._all("MutatingAdmissionPolicy"), self._all("MutatingAdmissionPolicyBinding"))
        self._chance.shuffle(self._mutating)  # they have no order that anybody could rely on
        self._validating = bind(self._all("ValidatingAdmissionPolicy"), self._all("ValidatingAdmissionPolicyBinding"))

    def _all(self, kind: str) -> Iterable[Document]:
        return (stored.document for stored in self._storage.all(kind))

    def _refresh_later(self) -> None:
        asyncio.get_running_loop().call_later(_EFFECTIVE_SECONDS, self.refresh)

    async def mutate(self, request: Request) -> None:
        """Changes the object of the request as plugins, policies and webhooks have it. Raises ApiError."""
        policies, webhooks = _Invocations(), _Invocations()
        has_changed = await self._pass(request, policies, webhooks, is_second=False)
        if has_changed:
            await self._pass(request, policies, webhooks, is_second=True)

    async def _pass(self, request: Request, policies: _Invocations, webhooks: _Invocations, *, is_second: bool) -> bool:
        if is_second:  # what the first pass has left is compared with what this one makes of it
            request.document = copied(request.document)
        admit(request.kind.name, request.document, request.operation, self._find)
        has_changed = False
        policies.begin(request.document, is_second=is_second)
        for policy in self._mutating:
            if policies.may_run(policy, is_second=is_second):
                changed = policy.mutate(request, lambda document: completed(request.kind.name, document))
                policies.ran(policy, has_changed=changed)
                has_changed |= changed
        policies.end(request.document)
        webhooks.begin(request.document, is_second=is_second)
        for webhook in self._webhooks:
            if webhook.applies(request) and webhooks.may_run(webhook, is_second=is_second):
                changed = await self._call(webhook, request)
                webhooks.ran(webhook, has_changed=changed)
                has_changed |= changed
        webhooks.end(request.document)
        return has_changed

    async def _call(self, webhook: Webhook | _Injector, request: Request) -> bool:
        uid = new_uid(self._chance)
        try:
            return await webhook.call(request, uid, self._send, lambda document: completed(request.kind.name, document))
        except CallFailed as exc:
            self._trace("api", "webhook-failed", webhook=webhook.name, why=str(exc))
            if webhook.fails_open:
                return False
            raise internal_error(str(exc)) from exc

    async def _send(self, path: str, body: bytes, seconds: float) -> tuple[int, bytes]:
        hosts = self.endpoints()
        if not hosts:
            raise ConnectionRefusedError("no endpoints available for service")
        return await self._post(self._chance.choice(hosts))(path, body, seconds)

    def validate(self, request: Request) -> None:
        """Raises ApiError for a request that a validating policy denies."""
        for policy in self._validating:
            policy.validate(request)

    def _find(self, kind: str, namespace: str, name: str) -> Document | None:
        stored = self._storage.find(kind, (namespace, name))
        return stored.document if stored else None


def completed(kind: str, document: Document) -> Document:
    """The document without what Go's types do not write, and with its defaults."""
    whole: Document = normalize(document)
    set_defaults(kind, whole)
    return whole


def new_uid(chance: random.Random) -> str:
    """A UUID, of the world's chance."""
    text = f"{chance.getrandbits(128):032x}"
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:]}"
