"""The settings: what is read, in which order, and how each refusal reads."""

import re
from pathlib import Path

import pytest

from extender.config.checks import parse_listen, problems_of, warnings_of
from extender.config.reading import load_config, read_config, to_yaml
from extender.config.tree import Config, settings
from extender.errors import ConfigError

SERVED = ("admission.tls.certificate=/c.pem", "admission.tls.key=/k.pem")
MANAGED = ("admission.tls.self_managed=[webhook]",)


def write(folder: Path, text: str) -> str:
    file = folder / "config.yaml"
    file.write_text(text)
    return str(file)


def test_defaults_are_read_from_nothing() -> None:
    """No file and no assignment give the documented defaults."""
    assert read_config(None) == Config()


def test_assignment_beats_file_and_file_beats_default(tmp_path: Path) -> None:
    """`--set` is over the file, which is over the default."""
    file = write(tmp_path, "scheduler: {wait_seconds: 0.3, pending: pass}\n")
    config = read_config(file, ["scheduler.wait_seconds=0.7"])
    assert (config.scheduler.wait_seconds, config.scheduler.pending, config.scheduler.unknown) == (0.7, "pass", "pass")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("schedular: {}", ["schedular", "no such setting", "scheduler"]),
        ("admission: {tls: {cert: x}}", ["admission.tls.cert", "certificate"]),
        ("scheduler: {pending: maybe}", ["scheduler.pending", "'maybe'", "retry"]),
        ("admission: {node_affinity: hard}", ["admission.node_affinity", "'hard'", "required"]),
        ("cache: {size: 0}", ["cache.size", "0", "a whole number from 1"]),
        ("scheduler: {assume: [{a: b}]}", ["scheduler.assume[0]", "a map", "a text"]),
        ("# nothing\nadmission: {tolerations: [{kee: x}]}", ["admission.tolerations[0]", "kee"]),
        ("scheduler: 3", ["scheduler", "3", "a map of settings"]),
        ("[1, 2]", ["must be a map"]),
        ("a: [", ["no YAML"]),
        ("[" * 2000, ["no YAML"]),
        ("registry: {deny: [a]}\n---\nlog: {level: debug}\n", ["more than one document"]),
    ],
)
def test_refusal_names_path_value_and_what_is_right(tmp_path: Path, text: str, says: list[str]) -> None:
    """Each refusal of a file says where, what and what would be right."""
    with pytest.raises(ConfigError) as refusal:
        read_config(write(tmp_path, text))
    for part in says:
        assert part in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "twice"),
    [
        ("registry: {deny: [a]}\nscheduler: {}\nregistry: {timeout_seconds: 5}\n", "line 3: the key 'registry'"),
        ("registry:\n  deny: [a]\n  'deny': []\n", "line 3: the key 'deny'"),
        ("admission:\n  tolerations:\n  - {operator: Exists, platforms: [a], platforms: [b]}\n", "line 3: the key 'pl"),
        ("cache: &a {size: 1}\nscheduler: {<<: *a, <<: *a}\n", "line 2: the key '<<'"),
        ('{"log": {"level": "info", "level": "debug"}}', "line 1: the key 'level'"),
    ],
)
def test_a_key_that_is_there_twice_is_refused(tmp_path: Path, text: str, twice: str) -> None:
    """At every depth: the first one would count for nothing, and it may be the list of what is denied."""
    with pytest.raises(ConfigError, match=f"is no YAML of settings: {twice}.* is there a second time"):
        read_config(write(tmp_path, text))
    with pytest.raises(ConfigError, match="second time"):
        read_config(None, ["registry={deny: [a], deny: []}"])


def test_a_section_that_is_assigned_keeps_what_the_file_says_beside_it(tmp_path: Path) -> None:
    """A map of a setting's own is replaced."""
    file = write(tmp_path, "registry: {deny: [a], credential_providers: {config: a, bin_dir: b}}\n")
    config = read_config(file, ["registry={timeout_seconds: 5, credential_providers: {bin_dir: c}}"])
    providers = config.registry.credential_providers
    assert (config.registry.deny, config.registry.timeout_seconds) == (("a",), 5)
    assert (providers.config, providers.bin_dir) == ("a", "c")
    assert read_config(file, ["placement.preference={}"]).placement.preference == {}


def test_an_assignment_changes_no_section_that_shares_its_text(tmp_path: Path) -> None:
    """An alias is read as if it were written out."""
    file = write(tmp_path, "placement: {runtime_classes: {a: &list [linux/amd64], b: *list}}\n")
    config = read_config(file, ["placement.runtime_classes.a=[]"])
    assert config.placement.runtime_classes == {"a": (), "b": ("linux/amd64",)}


@pytest.mark.parametrize("word", ["off", "yes", "1.0", "0x1f", "010", "1:30", "2001-01-01", "=", ".inf"])
def test_a_text_is_what_stands_there(tmp_path: Path, word: str) -> None:
    """Without quotes too, in a value, in a list, and as the key of a map."""
    text = f"placement: {{runtime_classes: {{{word}: []}}}}\n"
    text += f"registry: {{docker_config: {word}, deny: [{word}]}}\n"
    classes = "placement.runtime_classes"
    assigned = [f"registry.docker_config={word}", f"registry.deny=[{word}]"]
    assigned.append(f"{classes}={{{word}: []}}" if word in ("=", ".inf") else f"{classes}.{word}=[]")
    for config in (read_config(write(tmp_path, text)), read_config(None, assigned)):
        assert config.registry.docker_config == word
        assert config.registry.deny == (word,)
        assert config.placement.runtime_classes == {word: ()}


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("placement.preference", "{amd64: 3}", {"amd64": 3}),
        ("placement.preference.arm64", "3", 3),
        ("scheduler.assume", "[linux/arm64]", ("linux/arm64",)),
        ("admission.tls", "null", None),
        ("admission.tls.key", "/k.pem", "/k.pem"),
        ("cache.size", "7", 7),
        ("cache.size", "1e4", 10_000),
        ("cache.url", "memory:", "memory:"),
        ("cache.url", "'memory:'", "memory:"),
        ("cache.url", "redis://:a#b@c/0?prefix={x}", "redis://:a#b@c/0?prefix={x}"),
        ("operations.listen", "[::1]:8881", "[::1]:8881"),
        ("registry.docker_config", "*x", "*x"),
        ("registry.docker_config", "- a: [", "- a: ["),
        ("registry.docker_config", "", ""),
        ("placement.runtime_classes.a.example/b", "[linux/386]", ("linux/386",)),
        ("registry.pull_secrets", "[on, 1]", ("on", "1")),
        ("registry.pull_secrets", "off", False),
        ("placement.compatibility", "[arm-on-arm64, 386-on-amd64]", ("arm-on-arm64", "386-on-amd64")),
        ("registry.private_addresses", "'false'", False),
        ("scheduler.wait_seconds", "'1e-1'", 0.1),
    ],
)
def test_an_assigned_value_is_yaml_and_a_text_needs_no_quotes(path: str, text: str, value: object) -> None:
    """And may have them."""
    found: object = read_config(None, [f"{path}={text}"])
    for name in path.split(".", 2):
        found = found[name] if isinstance(found, dict) else getattr(found, name)
    assert found == value


WRONG = """
scheduler: {wait_seconds: soon, listen: null}
admission: {tls: 3, tolerations: [{key: "!", operator: Same}, {value: x, platforms: [a]}], wiat_seconds: 1}
registry: {deny: evil, clouds: [gcloud], pull_secrets: {a: b}, private_addresses: 1}
placement: {preference: {arm64: 11, amd64: 1.5}}
cache: []
"""


def test_all_that_is_wrong_is_told_at_once_in_the_words_of_settings(tmp_path: Path) -> None:
    """A line for each, none of which names a type of Python."""
    with pytest.raises(ConfigError) as refusal:
        read_config(write(tmp_path, WRONG), ["cache.size=-1", "nonsense", "log=loud"])
    lines = str(refusal.value).splitlines()
    assert sorted(re.split(" is wrong|; known there", line)[0] for line in lines) == sorted([
        "scheduler.wait_seconds: 'soon'", "admission.tls: '3'", "scheduler.listen: null", "log: 'loud'",
        "admission.tolerations[0].key: '!'", "admission.tolerations[0].operator: 'Same'",
        "admission.tolerations[0]: it lacks platforms", "admission.tolerations[1]: a map", "registry.deny: 'evil'",
        "registry.clouds[0]: 'gcloud'", "registry.pull_secrets: a map", "registry.private_addresses: '1'",
        "placement.preference.arm64: '11'", "placement.preference.amd64: '1.5'", "cache: a list",
        "admission.wiat_seconds: there is no such setting",
        "--set nonsense: write path=value, for example --set scheduler.wait_seconds=0.2",
    ])  # fmt: skip
    for words in (
        "'soon' is wrong: it must be a number from 0 up to 30. Longest time",
        "null is wrong: it must be a text, '' for none. host:port of the scheduler verbs",
        "'evil' is wrong: it must be a list such as [a, b]. Globs of hosts",
        "'gcloud' is wrong: it must be one of ",
        "a map is wrong: it must be true or false or a list such as [a, b]. Read the pull secrets",
        "'11' is wrong: it must be a whole number from 0 up to 10. Score",
        "a map is wrong: without a key the operator must be Exists. Each is added",
    ):
        assert words in str(refusal.value)
    assert not re.search(r"\b(str|int|float|bool|array|object|NoneType|Expected)\b", str(refusal.value))


@pytest.mark.parametrize("assignment", ["registry.deny=[~]", "cache.url=null", "registry.docker_config=~"])
def test_nothing_is_no_text(assignment: str) -> None:
    """An empty text is written as such."""
    with pytest.raises(ConfigError, match="null is wrong: it must be a text, '' for none"):
        read_config(None, [assignment])


@pytest.mark.parametrize(
    "assignment",
    ["scheduler.wait_seconds", "=3", "scheduler..x=3", "cache.size=[", "cache.sise=3", "cache.size=2001-13-45"],
)
def test_malformed_assignment_is_refused(assignment: str) -> None:
    """`--set` without a path, without a value, or with text that is no YAML."""
    with pytest.raises(ConfigError):
        read_config(None, [assignment])


NO_HOSTS = {
    "['']": "no DNS name", "[webhook, bücher.example]": "xn--", "['fe80::1%eth0']": "zone",
    "['10.0.0.01']": "no DNS name", "['[2001:db8::1]']": "no DNS name",
    "['https://webhook.example.com']": "no DNS name",
    "[webhook.example.com.]": "no DNS name", f"[{'a' * 64}.example.com]": "no DNS name",
}  # fmt: skip


@pytest.mark.parametrize(
    ("assignments", "says"),
    [
        ((), ["admission.tls.certificate", "admission.tls.key"]),
        ((*SERVED, "scheduler.listen=0.0.0.0:1"), ["scheduler.listen", "loopback"]),
        ((*SERVED, "scheduler.listen=:1"), ["scheduler.listen", "loopback"]),
        (("admission.tls=null",), ["admission.tls", "loopback"]),
        ((*SERVED, "operations.listen=0.0.0.0:8443"), ["operations.listen", "taken by"]),
        *(
            (
                (*SERVED, f"admission.listen={one}:8443", f"operations.listen='{all_}:8443'"),
                ["taken by admission.listen"],
            )
            for one, all_ in (("127.0.0.1", ""), ("localhost", "[::]"))
        ),
        (("scheduler.listen=", "admission.listen=", "cluster=none"), ["nothing to serve"]),
        ((*SERVED, "scheduler.listen=8880"), ["scheduler.listen", "host:port"]),
        ((*SERVED, "operations.listen=a:99999"), ["operations.listen", "host:port"]),
        ((*SERVED, "scheduler.unknown=assume", "scheduler.assume=[]"), ["scheduler.assume", "names nothing"]),
        ((*SERVED, "scheduler.assume=[arm64]"), ["scheduler.assume", "'arm64'"]),
        (
            ("admission.tls.self_managed=[10.0.0.1, webhook]",),
            ["self_managed", "'10.0.0.1' comes first and is no Service"],
        ),
        (
            (*SERVED, "registry.pull_secrets=['team-*']"),
            ["registry.pull_secrets", "'team-*' is no name of a namespace"],
        ),
        *((("admission.tls.self_managed=" + names,), ["self_managed", says]) for names, says in NO_HOSTS.items()),
        ((*MANAGED, "admission.tls.key=/k"), ["admission.tls.key", "'/k'"]),
        ((*MANAGED, "cluster=none"), ["admission.tls.self_managed", "cluster"]),
        ((*SERVED, "admission.unknown=gate", "cluster=none"), ["admission.unknown: gate", "cluster"]),
        ((*SERVED, "admission.gate.lease=a b"), ["gate.lease", "'a b' is no name"]),
        ((*SERVED, "admission.gate.probe_namespace=a/b"), ["probe_namespace", "'a/b' is no name of a namespace"]),
        ((*SERVED, "admission.tolerations=[{key: a, platforms: []}]"), ["tolerations[0].platforms"]),
    ],
)
def test_values_that_contradict_each_other_are_refused(assignments: tuple[str, ...], says: list[str]) -> None:
    """What cannot work together is refused before anything starts."""
    with pytest.raises(ConfigError) as refusal:
        load_config(None, assignments)
    for part in says:
        assert part in str(refusal.value)


@pytest.mark.parametrize(
    "assignments",
    [
        SERVED,
        ("admission.listen=",),
        ("admission.listen=127.0.0.1:8443", "admission.tls=null"),
        (*SERVED, "scheduler.listen='[::1]:8880'"),
        (*SERVED, "scheduler.listen='[::1]:8880'", "operations.listen=0.0.0.0:8880"),
        (*SERVED, "scheduler.listen=127.0.0.1:0", "operations.listen=127.0.0.1:0"),
        ("admission.tls.self_managed=[webhook, '2001:DB8:0::1', WEBHOOK.example.com, '*.example.com']",),
    ],
)
def test_values_that_fit_are_accepted(assignments: tuple[str, ...]) -> None:
    """Plain HTTP on loopback or on request, IPv6, port 0 and listeners switched off are fine."""
    assert not list(problems_of(load_config(None, assignments)))


@pytest.mark.parametrize(
    ("listen", "address"),
    [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:8880", ("::1", 8880)), ("host:1", ("host", 1)), (":80", ("", 80))],
)
def test_listen_is_host_and_port(listen: str, address: tuple[str, int]) -> None:
    """IPv6 wants brackets; the port is a number; no host is every address."""
    assert parse_listen(listen) == address


@pytest.mark.parametrize("listen", ["", "8880", "::1:80", "h:", ":", "[]:80", "h:-1", "h:70000", "h:٣"])
def test_listen_of_another_form_is_refused(listen: str) -> None:
    """Anything else is refused."""
    with pytest.raises(ConfigError, match="host:port"):
        parse_listen(listen)


def test_printed_configuration_reads_back(tmp_path: Path) -> None:
    """`config` prints what `--config` accepts, to the same values."""
    config = read_config(None, ["placement.preference={amd64: 4}", "scheduler.unknown=assume", "admission.tls=null"])
    assert read_config(write(tmp_path, to_yaml(config))) == config


def test_every_setting_is_documented_and_settable() -> None:
    """Each key has a documentation sentence, and its printed default can be assigned."""
    assert len(settings()) >= 30
    for setting in settings():
        assert setting.documentation.endswith("."), setting.path
        assert read_config(None, [f"{setting.path}={setting.default}"]) == Config(), setting.path


@pytest.mark.parametrize(
    ("path", "text", "problem"),
    [
        ("placement.preference", "{arm46: 1}", "'arm46': no node has the architecture 'arm46'; is"),
        ("scheduler.assume", "[linux/amd46]", "'linux/amd46': no node has the architecture 'amd46'; is"),
        ("scheduler.assume", "[linuks/arm64]", "'linuks/arm64': no node has the operating system 'linuks'; is it"),
        ("scheduler.assume", "[linux/arm64/v46]", "'linux/arm64/v46': no node has the variant 'v46' of arm"),
        ("scheduler.assume", "[linux/s390x/v2]", "'linux/s390x/v2': no node has the variant 'v2' of s390x"),
        ("scheduler.assume", "[linux/zzzzz]", "'linux/zzzzz': no node has the architecture 'zzzzz'"),
        ("scheduler.assume", "[linux/amd64/v3]", "'linux/amd64/v3': no node has the variant 'v3' of amd64"),
        ("scheduler.assume", "[linux/arm64/v9.2]", "'linux/arm64/v9.2': no node has the variant 'v9.2' of arm64"),
        ("scheduler.assume", "[linux/amd64/v1, linux/arm64/v8]", ""),
        ("placement.preference", "{aarch64: 1, x86_64: 2, riscv64: 3}", ""),
        ("scheduler.assume", "[windows/amd64, linux/arm/v7, linux/armhf]", ""),
        ("scheduler.assume", "[amd64]", "'amd64' is no platform"),
        ("placement.runtime_classes", "{wasm: [wasi/wasm, wasip1/wasm]}", ""),
        ("placement.runtime_classes", "{kata: [linux/arm46]}", "'linux/arm46': no node has the architecture 'arm46'"),
        ("placement.runtime_classes.kata", "[linux/arm46]", "'linux/arm46': no node has the architecture 'arm46'"),
        ("placement.preference.arm46", "10", "'arm46': no node has the architecture 'arm46'; is it 'arm64'?"),
        ("admission.tolerations", "[{operator: Exists, platforms: [linuks/arm64]}]", "[0].platforms: 'linuks/arm64'"),
        ("admission.tolerations", "[{key: kubernetes.io/arch, value: arm46, platforms: [linux/arm64]}]", "'arm46'"),
        ("admission.tolerations", "[{key: beta.kubernetes.io/os, value: linuks, platforms: [linux/arm64]}]", "'linux'"),
        ("admission.tolerations", "[{key: team, value: arm46, platforms: [linux/arm64]}]", ""),
        ("placement.images", "[{match: ghcr.io/a:1, platforms: [linux/amd46]}]", "[0].platforms: 'linux/amd46'"),
        ("placement.images", "[{match: ghcr.io/a:1, platforms: [linux/arm64/v8.2]}]", "no node has the variant 'v8.2'"),
        ("placement.images", "[{match: 'mongo:*', platforms: []}]", "placement.images[0].match: 'mongo:*'"),
        ("placement.images", "[{match: '*/mongo:*', platforms: []}]", ""),
        ("registry.clouds", "[awss]", "one of"),
        ("placement.compatibility", "[386-on-arm64]", "one of"),
    ],
)
def test_a_name_that_no_node_has_is_refused(path: str, text: str, problem: str) -> None:
    """With the nearest name that there is; other spellings of a name are fine."""
    if not problem:
        read_config(None, [f"{path}={text}"])
        return
    with pytest.raises(ConfigError) as caught:
        read_config(None, [f"{path}={text}"])
    [found] = caught.value.problems
    assert problem in found
    assert found.startswith(path.removesuffix(".arm46"))


@pytest.mark.parametrize(
    ("assignments", "warning"),
    [
        (["placement.preference={}"], "filter leaves no node out where placement.preference is {}"),
        (["placement.preference={arm64: 0}"], 'where placement.preference is {"arm64":0}'),
        (["scheduler.listen=''"], "placement.preference_by: filter needs the filter verb, and scheduler.listen is ''"),
        ([], ""),
    ],
)
def test_a_strict_preference_that_cannot_act_is_worth_a_warning(assignments: list[str], warning: str) -> None:
    """With nothing to prefer, or without the verb that would say so; by scores neither is one."""
    strict, scored = (
        list(warnings_of(read_config(None, [f"placement.preference_by={by}", *assignments])))
        for by in ("filter", "score")
    )
    assert scored == []
    assert [warning in text for text in strict] == [True] * bool(warning)


def test_without_a_listener_held_pods_are_still_let_go() -> None:
    """Which is worth a warning, where none is held any more."""
    for unknown, count in (("pass", 1), ("gate", 0)):
        assignments = ["scheduler.listen=", "admission.listen=", f"admission.unknown={unknown}"]
        config = load_config(None, [*assignments, "admission.node_affinity=required"])
        assert ["nothing is done but to remove the gates" in each for each in warnings_of(config)] == [True] * count
