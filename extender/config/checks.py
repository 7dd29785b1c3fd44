"""Checks of the settings beyond their types: combinations, addresses, platforms. Opens no file."""

import contextlib
import ipaddress
import re
from collections.abc import Iterator

import msgspec

from extender.certificates.server_names import canonical_name
from extender.config.tree import Config, TlsConfig
from extender.errors import ConfigError
from extender.images.platform import (
    ARCHITECTURES,
    SYSTEM_NAMES,
    InvalidPlatform,
    Platform,
    normalize_platform,
    parse_platform,
    variants_of,
)
from extender.placement.annotations import Choice
from extender.placement.gate import UnknownImages
from extender.placement.nodes import ARCHITECTURE, OPERATING_SYSTEM
from extender.placement.policy import PreferenceBy

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_OBJECT = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", re.ASCII)


def problems_of(config: Config) -> Iterator[str]:
    """The problems of the settings taken together, one sentence each."""
    yield from _listener_problems(config)
    for index, rule in enumerate(config.admission.tolerations):
        if not rule.platforms:
            yield f"admission.tolerations[{index}].platforms: [] is empty; name what every image must run on"
    yield from _provider_problems(config)
    yield from _gate_problems(config)
    yield from _object_problems(config)
    readable = config.registry.pull_secrets
    namespaces = {
        "registry.pull_secrets": () if isinstance(readable, bool) else readable,
        "admission.gate.probe_namespace": (config.admission.gate.probe_namespace,),
    }
    for path, names in namespaces.items():
        for name in names:
            if not _LABEL.fullmatch(name):
                yield f"{path}: {name!r} is no name of a namespace; write one like team-a, without patterns"
    if Choice.ASSUME in (config.scheduler.pending, config.scheduler.unknown) and not config.scheduler.assume:
        yield "scheduler.assume: [] names nothing while scheduler.pending or scheduler.unknown is assume; name one"


def _gate_problems(config: Config) -> Iterator[str]:
    admission = config.admission
    if admission.unknown is UnknownImages.GATE and not config.has_cluster:
        yield "admission.unknown: gate needs a cluster, and cluster is none; choose pass or assume"
    if admission.gate.policy and admission.unknown is not UnknownImages.GATE:
        yield "admission.gate.policy: it needs admission.unknown gate; set that, or leave the policy out"
    if admission.unknown is UnknownImages.ASSUME:
        if not admission.node_affinity.required:
            need = f"needs admission.node_affinity required or both, and it is {admission.node_affinity}"
            yield f"admission.unknown: assume {need}; choose one of them, or admission.unknown pass"
        if not config.scheduler.assume:
            yield "scheduler.assume: [] names nothing while admission.unknown is assume; name one"


def _object_problems(config: Config) -> Iterator[str]:
    """Names of objects of the API server's, which become parts of a path."""
    admission = config.admission
    named = {"admission.gate.lease": admission.gate.lease}
    if admission.gate.policy:
        named["admission.gate.policy"] = admission.gate.policy
    for path, name in named.items():
        if not _OBJECT.fullmatch(name):
            yield f"{path}: {name!r} is no name of an object; write one like multiarch-webhook"


def name_problems(config: Config) -> Iterator[str]:
    """Names of architectures, systems and platforms that there are not, each with what is probably meant."""
    for name in config.placement.preference:
        if problem := unheard_of(Platform("", normalize_platform("", name).architecture)):
            yield f"placement.preference: {name!r}: {problem}"
    for path, text in _named_platforms(config):
        try:
            if problem := unheard_of(parse_platform(text)):
                yield f"{path}: {text!r}: {problem}"
        except InvalidPlatform as exc:
            yield f"{path}: {exc}"
    for index, rule in enumerate(config.admission.tolerations):
        word = rule.key.removeprefix("beta.")
        named = Platform(rule.value if word == OPERATING_SYSTEM else "", rule.value if word == ARCHITECTURE else "")
        if problem := unheard_of(named):
            yield f"admission.tolerations[{index}].value: {rule.value!r}: {problem}"


def warnings_of(config: Config) -> Iterator[str]:
    """What `serve` accepts and is probably a mistake, one sentence each."""
    yield from _preference_warnings(config)
    admission = config.admission
    if admission.unknown is UnknownImages.GATE and not (admission.node_affinity.required or config.scheduler.listen):
        affinity = f"admission.node_affinity: {admission.node_affinity}"
        yield f"{affinity} keeps pods that admission.unknown: gate has held from no node; is it required?"
    if not (config.scheduler.listen or config.admission.listen or admission.unknown is UnknownImages.GATE):
        only = f"with admission.unknown: {admission.unknown} nothing is done but to remove the gates of held pods"
        yield f"scheduler.listen and admission.listen are empty; {only}"


def _preference_warnings(config: Config) -> Iterator[str]:
    if config.placement.preference_by is not PreferenceBy.FILTER:
        return
    if not any(config.placement.preference.values()):
        preference = msgspec.json.encode(config.placement.preference).decode()
        yield f"placement.preference_by: filter leaves no node out where placement.preference is {preference}"
    if not config.scheduler.listen:
        yield "placement.preference_by: filter needs the filter verb, and scheduler.listen is ''; is it score?"


def unheard_of(platform: Platform) -> str:
    """Which part of the platform Go has no port for, and the nearest it has; empty if it has a port for both."""
    import difflib  # late, since nearly every configuration does without

    for kind, word, known in (
        ("operating system", platform.os, SYSTEM_NAMES),
        ("architecture", platform.architecture, ARCHITECTURES),
    ):
        if word and word not in known:
            near = difflib.get_close_matches(word, sorted(known), 1)
            return f"no node has the {kind} {word!r}" + (f"; is it {near[0]!r}?" if near else "")
    variants = variants_of("arm") if platform.architecture == "arm" else ()
    if platform.variant and platform.variant not in variants:
        has = f"; it has {', '.join(variants)}" if variants else ""
        return f"no node has the variant {platform.variant!r} of {platform.architecture}{has}"
    return ""


def _named_platforms(config: Config) -> Iterator[tuple[str, str]]:
    """Each platform that the settings name, after the path of the key."""
    for text in config.scheduler.assume:
        yield "scheduler.assume", text
    for name, platforms in config.placement.runtime_classes.items():
        for text in platforms:
            yield f"placement.runtime_classes.{name}", text
    for index, said in enumerate(config.placement.images):
        for text in said.platforms:
            yield f"placement.images[{index}].platforms", text
    for index, rule in enumerate(config.admission.tolerations):
        for text in rule.platforms:
            yield f"admission.tolerations[{index}].platforms", text


def _provider_problems(config: Config) -> Iterator[str]:
    providers = config.registry.credential_providers
    if bool(providers.config) != bool(providers.bin_dir):
        yield "registry.credential_providers: config and bin_dir are needed together; give both or neither"


def _listener_problems(config: Config) -> Iterator[str]:
    listens = {
        "scheduler.listen": config.scheduler.listen,
        "admission.listen": config.admission.listen,
        "operations.listen": config.operations.listen,
    }
    # In a cluster the gates of held pods are removed without a listener, also where none is held any more.
    if not (config.has_cluster or config.scheduler.listen or config.admission.listen):
        yield "scheduler.listen and admission.listen are empty, so there is nothing to serve; give one a host:port"
    used: dict[str, tuple[str, int]] = {}
    for path, listen in listens.items():
        if not listen:
            continue
        try:
            address = parse_listen(listen)
        except ConfigError as exc:
            yield f"{path}: {exc}"
            continue
        for other, taken in used.items():
            if _overlaps(address, taken):
                yield f"{path}: {listen!r} is taken by {other}; choose another port"
        used[path] = address
    if config.scheduler.listen and not is_loopback(config.scheduler.listen):
        where = f"{config.scheduler.listen!r} is no loopback address, and the verbs are plain HTTP"
        yield f"scheduler.listen: {where}; write 127.0.0.1:8880, behind a proxy with TLS for callers elsewhere"
    if config.admission.listen:
        yield from _tls_problems(config.admission.listen, config.admission.tls)
        if is_self_managed(config):
            yield from _self_managed_problems(config)


def is_self_managed(config: Config) -> bool:
    """Whether the service looks after the webhook's certificate itself."""
    return bool(config.admission.tls and config.admission.tls.self_managed)


def _self_managed_problems(config: Config) -> Iterator[str]:
    tls = config.admission.tls
    files = {
        "tls.certificate": tls.certificate if tls else "",
        "tls.key": tls.key if tls else "",
    }
    for name, file in files.items():
        if file:
            yield f"admission.{name}: {file!r} is not used with admission.tls.self_managed; give one of the two"
    if not config.has_cluster:
        yield "admission.tls.self_managed: it needs a cluster, and cluster is none; give certificate files instead"
    if tls and not _LABEL.fullmatch(tls.service):
        needed = "comes first and is no Service; write one like multiarch-webhook"
        yield f"admission.tls.self_managed: {tls.service!r} {needed}"
    for name in tls.self_managed if tls else ():
        try:
            canonical_name(name)
        except ValueError as exc:
            yield f"admission.tls.self_managed: {name!r}: {exc}"


def _tls_problems(listen: str, tls: TlsConfig | None) -> Iterator[str]:
    if tls is None:
        if not is_loopback(listen):
            where = f"a loopback address only, and admission.listen is {listen!r}"
            yield f"admission.tls: null is allowed on {where}; give certificate files"
        return
    for field in ("certificate", "key") if not tls.self_managed else ():
        if not getattr(tls, field):
            why = f"'' names no file while admission.listen is {listen!r}"
            yield f"admission.tls.{field}: {why}; give a PEM file, or set admission.listen to '' to switch it off"


def parse_listen(listen: str) -> tuple[str, int]:
    """Host and port of `host:port`, `[v6]:port` or `:port`; the host of the last, every address, is empty.

    Raises:
        ConfigError: `listen` has none of these forms.
    """
    host, colon, port = listen.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if (
        not colon
        or host == "[]"
        or (":" in host and not bracketed)
        or not port.isascii()
        or not port.isdigit()
        or int(port) > 65535
    ):
        raise ConfigError(
            f"{listen!r} is no host:port; write for example 127.0.0.1:8880, :8880 for every address of every family, "
            "or '' to switch the listener off"
        )
    return host.strip("[]"), int(port)


def _overlaps(first: tuple[str, int], second: tuple[str, int]) -> bool:
    """Whether two addresses cannot both be bound: they have one port, and one host includes the other."""
    (one, port), (other, other_port) = first, second
    return bool(port) and port == other_port and (_includes(one, other) or _includes(other, one))


def _includes(host: str, other: str) -> bool:
    """Whether an address that is bound for `host` takes that of `other`; a name may have addresses of both families."""
    if host == other or not host:
        return True
    with contextlib.suppress(ValueError):
        wildcard = ipaddress.ip_address(host)
        return wildcard.is_unspecified and wildcard.version == ipaddress.ip_address(other).version
    return host in ("0.0.0.0", "::")


def is_loopback(listen: str) -> bool:
    """Whether the address is a loopback address, which only this machine reaches."""
    try:
        host, _ = parse_listen(listen)
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except (ConfigError, ValueError):
        return False
