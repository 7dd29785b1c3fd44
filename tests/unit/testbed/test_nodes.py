"""What a real node is made of, as far as it shows without running one."""

import json
import stat
import struct
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from testbed.nodes import arm64_runc
from testbed.nodes.architecture import exchange_constant, read_sections, redirect_constant
from testbed.nodes.configuration import CNI_PLUGIN, containerd_configuration, kubelet_configuration
from testbed.nodes.elf import AARCH64, RISCV, elf_header
from testbed.nodes.machine import NodesImpossible, require_machine, require_paths
from testbed.nodes.programs import Containerd

AMD64 = 62
QEMU, FOREIGN = "/machine/qemu", "/machine/foreign"
WORDS = b"alphaamd64arm64linuxgamma"


def program(*loads: tuple[int, bytes]) -> bytes:
    """An ELF file whose code, at address 0x1000, loads the addresses of these words, each at its offset.

    The words are at address 0x2000.
    """
    code = bytearray(0x400)
    for offset, word in loads:
        target = 0x2000 + WORDS.index(word)
        code[offset : offset + 7] = b"\x48\x8d\x05" + struct.pack("<i", target - (0x1000 + offset + 7))
    names = b"\0.text\0.rodata\0.shstrtab\0"
    body = bytes(code) + WORDS + names
    sections = [
        (0, 0, 0, 0, 0, 0),
        (names.index(b".text"), 1, 0, 0x1000, 64, len(code)),
        (names.index(b".rodata"), 1, 0, 0x2000, 64 + len(code), len(WORDS)),
        (names.index(b".shstrtab"), 3, 0, 0, 64 + len(code) + len(WORDS), len(names)),
    ]
    header = bytearray(elf_header(AMD64))
    struct.pack_into("<Q", header, 40, 64 + len(body))
    struct.pack_into("<HHH", header, 58, 64, len(sections), 3)
    table = b"".join(struct.pack("<IIQQQQIIQQ", *section, 0, 0, 0, 0) for section in sections)
    return bytes(header) + body + table


def loaded(file: bytes, offset: int) -> bytes:
    """The word whose address the code loads at that offset."""
    (distance,) = struct.unpack_from("<i", file, read_sections(file)[".text"].offset + offset + 3)
    start = 0x1000 + offset + 7 + distance - 0x2000
    return WORDS[start : start + 5]


def test_only_the_programs_own_platform_becomes_arm64(tmp_path: Path) -> None:
    """The word beside the operating system is exchanged; the one that other images are compared with stays."""
    original = tmp_path / "original"
    original.write_bytes(program((0x10, b"amd64"), (0x30, b"linux"), (0x200, b"amd64"), (0x300, b"arm64")))
    redirect_constant(original, tmp_path / "copy")
    changed = (tmp_path / "copy").read_bytes()
    assert [loaded(changed, offset) for offset in (0x10, 0x30, 0x200, 0x300)] == [
        b"arm64",
        b"linux",
        b"amd64",
        b"arm64",
    ]
    assert (tmp_path / "copy").stat().st_mode & stat.S_IXUSR


def test_a_program_without_a_platform_of_its_own_is_refused(tmp_path: Path) -> None:
    """So a compiler that arranges it otherwise is noticed at once."""
    original = tmp_path / "original"
    original.write_bytes(program((0x10, b"amd64"), (0x300, b"linux"), (0x310, b"arm64")))
    with pytest.raises(ValueError, match="no platform of its own"):
        redirect_constant(original, tmp_path / "copy")


def test_a_constant_is_exchanged_wherever_it_is(tmp_path: Path) -> None:
    """The copy is as long as the original."""
    (tmp_path / "original").write_bytes(b"sliceamd64gcing")
    exchange_constant(tmp_path / "original", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"slicearm64gcing"


@pytest.mark.parametrize("version", Containerd)
def test_containerd_is_told_its_pause_image_and_its_runtime(version: Containerd) -> None:
    """In the place that each version reads."""
    text = containerd_configuration(version, "127.0.0.1:5000/pause:1", Path("/n/runc"), Path("/n/cni")).decode()
    plugins = tomllib.loads(text)["plugins"]
    if version is Containerd.DEBIAN:
        runtime = plugins["io.containerd.grpc.v1.cri"]
        assert runtime["sandbox_image"] == "127.0.0.1:5000/pause:1"
    else:
        runtime = plugins["io.containerd.cri.v1.runtime"]
        assert plugins["io.containerd.cri.v1.images"]["pinned_images"] == {"sandbox": "127.0.0.1:5000/pause:1"}
    options = runtime["containerd"]["runtimes"]["runc"]["options"]
    assert options == {"SystemdCgroup": False, "BinaryName": "/n/runc"}


def test_kubelet_listens_on_loopback_to_clients_with_a_certificate_only() -> None:
    """It may run anything as root for whoever is let in."""
    found = kubelet_configuration(20000, "some-cgroup", Path("/n/ca.crt"))
    assert (found["address"], found["readOnlyPort"], found["healthzPort"]) == ("127.0.0.1", 0, 0)
    assert found["authentication"]["anonymous"] == {"enabled": False}
    assert found["authentication"]["x509"] == {"clientCAFile": "/n/ca.crt"}


def test_the_network_plugin_answers_with_an_address(tmp_path: Path) -> None:
    """As the CNI specification has it, for a pod in that network namespace."""
    plugin = tmp_path / "plugin"
    plugin.write_text(CNI_PLUGIN)
    environment = {"CNI_COMMAND": "ADD", "CNI_NETNS": "/run/netns/pod", "PATH": "/usr/bin:/bin"}
    said = subprocess.run(["sh", plugin], input=b"{}", env=environment, capture_output=True, check=True).stdout
    answer = json.loads(said)
    assert answer["interfaces"] == [{"name": "eth0", "sandbox": "/run/netns/pod"}]
    assert answer["ips"][0]["interface"] == 0


def test_a_release_that_is_not_pinned_has_no_real_nodes() -> None:
    """The reason is one line, on machines that lack more as well."""
    with pytest.raises(NodesImpossible) as raised:
        require_machine({"K8S": "1.20"})
    assert "\n" not in str(raised.value)


def test_a_cache_that_a_node_would_not_see_is_refused() -> None:
    """A node has a /var/lib of its own."""
    with pytest.raises(NodesImpossible, match="/var/lib/somebody"):
        require_paths({"HOME": "/var/lib/somebody"})


def container(root: Path, *arguments: str, files: dict[str, bytes]) -> dict[str, Any]:
    """The runtime's specification of a container with these files."""
    for path, content in files.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return {"process": {"args": list(arguments), "env": ["PATH=/usr/bin:/bin"], "cwd": "/"}}


def adapted(root: Path, spec: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
    """The container's arguments on the arm64 node, and the files of the machine shown in it."""
    arm64_runc.adapt(spec, root, QEMU, FOREIGN)
    return spec["process"]["args"], {each["destination"]: each["source"] for each in spec.get("mounts", [])}


def test_a_program_for_arm64_is_run_by_qemu(tmp_path: Path) -> None:
    """With its own arguments."""
    spec = container(tmp_path, "/hello", "there", files={"/hello": elf_header(AARCH64)})
    assert adapted(tmp_path, spec) == (["/.qemu", "/hello", "there"], {"/.qemu": QEMU})


def test_a_program_for_another_machine_is_left_to_the_kernel_to_refuse(tmp_path: Path) -> None:
    """amd64 would run here: a program that does not is put over it."""
    spec = container(tmp_path, "/hello", files={"/hello": elf_header(AMD64)})
    assert adapted(tmp_path, spec) == (["/hello"], {"/hello": FOREIGN})


def test_a_program_is_found_on_the_path_and_through_links(tmp_path: Path) -> None:
    """As busybox images have it: links within the image, absolute and relative ones."""
    spec = container(tmp_path, "sh", "-c", "true", files={"/usr/bin/busybox": elf_header(AARCH64)})
    (tmp_path / "usr/bin/sh").symlink_to("/bin/busybox")
    (tmp_path / "bin").symlink_to("usr/bin")
    assert adapted(tmp_path, spec) == (["/.qemu", "/usr/bin/busybox", "-c", "true"], {"/.qemu": QEMU})


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (AARCH64, (["/.qemu", "/bin/sh", "-e", "/script", "one"], {"/.qemu": QEMU})),
        (AMD64, (["/script", "one"], {"/bin/sh": FOREIGN})),
    ],
)
def test_a_script_is_what_its_interpreter_is(
    tmp_path: Path, machine: int, expected: tuple[list[str], dict[str, str]]
) -> None:
    """The kernel runs the interpreter, with the words of the script's first line."""
    files = {"/script": b"#!/bin/sh -e\necho hello\n", "/bin/sh": elf_header(machine)}
    assert adapted(tmp_path, container(tmp_path, "/script", "one", files=files)) == expected


@pytest.mark.parametrize("files", [{}, {"/hello": b"echo hello\n"}, {"/hello": b"#!/absent\n"}])
def test_what_runs_nowhere_is_left_as_it_is(tmp_path: Path, files: dict[str, bytes]) -> None:
    """A program that is not there, a script without a first line, one whose interpreter is not there."""
    assert adapted(tmp_path, container(tmp_path, "/hello", files=files)) == (["/hello"], {})


def test_the_wrapper_becomes_runc(tmp_path: Path) -> None:
    """It changes the specification in the bundle before a container is created, and passes every argument on."""
    bundle = tmp_path / "bundle"
    spec = container(bundle / "rootfs", "/hello", files={"/hello": elf_header(RISCV)})
    (bundle / "config.json").write_text(json.dumps({**spec, "root": {"path": "rootfs"}}))
    runc = tmp_path / "runc"
    runc.write_text('#!/bin/sh\necho "$@"\n')
    runc.chmod(0o755)
    command = [sys.executable, "-I", "-S", arm64_runc.__file__, str(runc), QEMU, FOREIGN]
    for arguments in (["create", "--bundle", str(bundle), "id"], ["state", "id"]):
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=True)
        assert done.stdout.split() == arguments
    assert json.loads((bundle / "config.json").read_text())["mounts"][0]["destination"] == "/hello"
