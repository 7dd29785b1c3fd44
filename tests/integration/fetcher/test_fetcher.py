"""A real fetcher between a service and registries on loopback: what kills it, what attacks it, and what that costs."""

import asyncio
import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from extender.circuit_breaker import Backoff
from extender.config.registry_section import RegistryConfig
from extender.credentials.keyring import ANONYMOUS
from extender.errors import ConfigError, RegistryNotAsked
from extender.fetcher import child as child_module
from extender.fetcher import fetcher_client
from extender.fetcher.child import ALONE, FetcherChild, FetcherEnded
from extender.fetcher.fetcher_client import ENDS, FetcherClient, open_fetcher
from extender.fetcher.messages import Channel, Failed, Look, Ping, SeenImage, ToQuestion
from extender.fetcher.settings import FetcherSettings
from extender.images.content import Cause
from extender.images.failures import failure_of
from extender.images.reference import ImageReference, parse_reference
from extender.registry_metrics import REQUESTS
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from testbed.images import build_index
from testbed.recorded_program import Program
from tests.integration.registry.conftest import talking as conversing

IMAGE = build_index(["linux/amd64", "linux/arm64"])
NOT_ASKED, UNAVAILABLE = "not asked", Cause.UNAVAILABLE
Talk = Callable[[asyncio.StreamWriter], Awaitable[None]]


def settings_for(*hosts: str, **more: object) -> RegistryConfig:
    values: dict[str, object] = {"timeout_seconds": 5.0, "plain_http": hosts, "allow": ("*", *hosts), **more}
    return RegistryConfig(**values)  # type: ignore[arg-type]  # of the fields' own types


@pytest.fixture(autouse=True)
def _starts_follow_each_other_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since processes are ended here before they have lived for a second."""
    monkeypatch.setattr(fetcher_client, "_RESTART", Backoff(first_seconds=0.01, max_seconds=0.01))


@pytest.fixture
async def registry() -> AsyncIterator[EmbeddedRegistry]:
    async with EmbeddedRegistry() as opened:
        opened.add("team/app", "1", IMAGE)
        yield opened


def app_at(registry: EmbeddedRegistry) -> ImageReference:
    return parse_reference(f"{registry.host}/team/app:1")


async def state(client: FetcherClient, image: ImageReference, *, seconds: float = 20) -> str:
    known = (IMAGE.digest,)
    look = Look(tenant="team", reference=image, kubelet_name=image, seconds=seconds, known=known)
    return outcome_of(await client.look(look))


async def describe(client: FetcherClient, image: ImageReference, *, tenant: str, seconds: float) -> str:
    look = Look(tenant=tenant, reference=image, kubelet_name=image, seconds=seconds)
    return outcome_of(await client.look(look))


def outcome_of(answer: SeenImage | Failed) -> str:
    if isinstance(answer, SeenImage):
        return answer.digest
    return NOT_ASKED if answer.failure == failure_of(RegistryNotAsked("")) else answer.failure.cause


async def pid_of(client: FetcherClient) -> int:
    return (await client.running()).pid


@contextlib.asynccontextmanager
async def talking(talk: Talk) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await talk(writer)

    async with conversing(serve) as host:
        yield host


async def endlessly(writer: asyncio.StreamWriter, head: bytes, piece: bytes) -> None:
    writer.write(head)
    while not writer.is_closing():
        writer.write(piece)
        await writer.drain()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.oci.image.index.v1+json\r\n"
STATED = (
    f"HTTP/1.1 200 OK\r\nDocker-Content-Digest: {IMAGE.digest}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
).encode()
SHORT = HEAD + b"Content-Length: 4194304\r\n\r\n" + b"x" * ((4 << 20) - 1)
FLOODS = [
    pytest.param(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1000, id="interim-answers"),
    pytest.param(HEAD + b"\r\n", b"x" * 65536, id="body"),
]


async def test_images_are_described_as_in_process(registry: EmbeddedRegistry) -> None:
    """Digest, description and failures come through, and what was counted is seen here."""
    before = REQUESTS["2xx"].value
    async with open_fetcher(settings_for(registry.host)) as client:
        app = app_at(registry)
        assert await state(client, app) == IMAGE.digest
        seen = await client.look(Look(tenant="team", reference=app, kubelet_name=app, seconds=20))
        assert isinstance(seen, SeenImage)
        assert seen.image
        assert (seen.by, seen.digest, len(seen.image.entries)) == (ANONYMOUS.id, IMAGE.digest, 2)
        assert await state(client, parse_reference(f"{registry.host}/team/app:typo")) == Cause.MISSING
        await eventually(lambda: REQUESTS["2xx"].value - before >= 2)
    assert REQUESTS["2xx"].value - before == 2


async def test_file_that_cannot_be_used_is_told_at_the_start(tmp_path: Path) -> None:
    async with open_fetcher(settings_for(ca_files=(str(tmp_path / "absent"),))) as client:
        with pytest.raises(ConfigError, match=r"registry\.ca_files: .*absent holds no certificates"):
            await client.check()
        assert await state(client, parse_reference("quay.io/team/app:1"), seconds=5) == NOT_ASKED


async def test_two_hundred_lookups_are_known_soon_after_it_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are asked for again at once; the registry takes its time for each."""
    asked = 0

    async def take_time(writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.3)
        writer.write(STATED)

    alone = _record_alone(monkeypatch)
    async with talking(take_time) as slow, open_fetcher(settings_for(slow)) as client:
        names = [parse_reference(f"{slow}/team/app:{number}") for number in range(200)]
        looking = [asyncio.create_task(state(client, name)) for name in names]
        await eventually(lambda: asked > 100)
        os.kill(await pid_of(client), signal.SIGKILL)
        assert await asyncio.gather(*looking) == [IMAGE.digest] * 200
    assert alone == []


async def test_process_that_never_says_that_it_is_ready_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nobody is asked by it, so nothing else finds out."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    monkeypatch.setattr(child_module, "_START_SECONDS", 0.05)
    monkeypatch.setattr(sys, "executable", str(program))
    child = FetcherChild(FetcherSettings(registry=RegistryConfig()), ALONE)
    with pytest.raises(FetcherEnded, match="silent"):
        await child.start()
    await child.wait_end()
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


def _record_alone(monkeypatch: pytest.MonkeyPatch) -> list[ImageReference]:
    alone: list[ImageReference] = []
    ask = FetcherChild.ask

    async def record(child: FetcherChild, question: Look | Ping) -> ToQuestion:
        if child.name == ALONE and isinstance(question, Look):
            alone.append(question.reference)
        return await ask(child, question)

    monkeypatch.setattr(FetcherChild, "ask", record)
    return alone


@pytest.mark.parametrize("where", ["channel", "socket", "process", "thread", "settings"])
async def test_want_of_something_at_a_start_is_followed_by_another(
    registry: EmbeddedRegistry, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """One error while the process or the channel to it is made, whatever it is."""
    faults: list[Exception] = [RuntimeError("no thread") if where == "thread" else OSError(24, "no descriptors")]
    target, name = {
        "channel": (Channel, "over"),
        "socket": (socket, "socketpair"),
        "process": (subprocess, "Popen"),
        "thread": (asyncio, "to_thread"),
        "settings": (Channel, "send"),
    }[where]
    works = getattr(target, name)

    def fail_once(*args: object, **more: object) -> object:
        if faults:
            raise faults.pop()
        return works(*args, **more)

    unstarted = ENDS["unstarted"].value
    monkeypatch.setattr(target, name, fail_once)
    async with open_fetcher(settings_for(registry.host)) as client:
        if where == "thread":
            assert await state(client, app_at(registry)) == IMAGE.digest
            os.kill(await pid_of(client), signal.SIGKILL)
        else:
            assert await state(client, app_at(registry)) == NOT_ASKED
        assert await state(client, app_at(registry)) == IMAGE.digest
    assert not faults
    assert ENDS["unstarted"].value - unstarted == (where != "thread")


async def test_process_that_hangs_is_replaced(registry: EmbeddedRegistry) -> None:
    silent = ENDS["silent"].value
    async with open_fetcher(settings_for(registry.host)) as client:
        assert await state(client, app_at(registry)) == IMAGE.digest
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(child_module, "_PONG_SECONDS", 0.3)  # of this process alone, which is stopped
            os.kill(await pid_of(client), signal.SIGSTOP)
            await eventually(lambda: ENDS["silent"].value > silent)
        assert await state(client, app_at(registry)) == IMAGE.digest
    assert ENDS["silent"].value - silent == 1


@pytest.mark.parametrize(("head", "piece"), FLOODS)
async def test_endless_answers_end_their_own_lookup(registry: EmbeddedRegistry, head: bytes, piece: bytes) -> None:
    """Twelve of them at once, and nobody else waits."""
    async with (
        talking(lambda writer: endlessly(writer, head, piece)) as flood,
        open_fetcher(settings_for(registry.host, flood)) as client,
    ):
        assert await state(client, app_at(registry)) == IMAGE.digest
        first = await pid_of(client)
        hostile = [
            asyncio.create_task(describe(client, parse_reference(f"{flood}/app:{tag}"), tenant="mallory", seconds=20))
            for tag in range(12)
        ]
        for _ in range(10):
            assert await state(client, app_at(registry), seconds=5) == IMAGE.digest
        assert IMAGE.digest not in await asyncio.gather(*hostile)
        assert await pid_of(client) == first


async def test_bodies_that_stop_short_of_the_limit_give_way(registry: EmbeddedRegistry) -> None:
    """Forty of them would be 160 MB: those that take longest are given up, and nothing ends."""
    end, over = asyncio.Event(), 0

    async def stop_short(writer: asyncio.StreamWriter) -> None:
        nonlocal over
        try:
            writer.write(SHORT)
            await writer.drain()
        finally:
            over += 1
        await end.wait()

    async with talking(stop_short) as hostile, open_fetcher(settings_for(registry.host, hostile)) as client:
        assert await state(client, app_at(registry)) == IMAGE.digest
        first = await pid_of(client)
        images = [parse_reference(f"{hostile}/app:{tag}") for tag in range(40)]
        attack = [asyncio.create_task(describe(client, image, tenant="mallory", seconds=8)) for image in images]
        for _ in range(20):
            assert await state(client, app_at(registry), seconds=5) == IMAGE.digest
        await eventually(lambda: over == 40)
        end.set()
        assert set(await asyncio.gather(*attack)) == {UNAVAILABLE}
        assert await pid_of(client) == first


async def test_what_makes_it_too_large_leaves_others_their_images(
    registry: EmbeddedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is; alone each of its images is harmless here, and is given up."""
    monkeypatch.setattr(fetcher_client, "RESIDENT_BYTES", 62 << 20)
    monkeypatch.setattr(fetcher_client, "_ALONE_SECONDS", 1.0)
    monkeypatch.setattr(fetcher_client, "PATIENCE_SECONDS", 0.0)
    over = ENDS["over"].value
    end = asyncio.Event()

    async def stop_short(writer: asyncio.StreamWriter) -> None:
        writer.write(SHORT)
        await writer.drain()
        await end.wait()

    async with (
        talking(stop_short) as hostile,
        open_fetcher(settings_for(registry.host, hostile, timeout_seconds=20.0)) as client,
    ):
        assert await state(client, app_at(registry)) == IMAGE.digest
        images = [parse_reference(f"{hostile}/app:{tag}") for tag in range(12)]
        attack = [asyncio.create_task(describe(client, image, tenant="mallory", seconds=20)) for image in images]
        async with asyncio.timeout(60):
            while ENDS["over"].value == over:
                assert await state(client, app_at(registry)) == IMAGE.digest
        await asyncio.wait(attack, return_when=asyncio.FIRST_COMPLETED)
        assert await state(client, app_at(registry)) == IMAGE.digest
        end.set()
        assert set(await asyncio.gather(*attack)) <= {UNAVAILABLE, NOT_ASKED}


async def test_want_of_descriptors_is_no_fault_of_the_host() -> None:
    """The image is asked for again. Its registry closes each connection, so that each question takes another."""

    async def state_digest(writer: asyncio.StreamWriter) -> None:
        writer.write(STATED)

    async with talking(state_digest) as host, open_fetcher(settings_for(host)) as client:
        image = parse_reference(f"{host}/team/app:1")
        assert await state(client, image) == IMAGE.digest
        pid = await pid_of(client)
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (1, hard))
        assert await state(client, image) == NOT_ASKED
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
        assert await state(client, image) == IMAGE.digest


async def test_helper_runs_there_and_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that hangs holds nothing up, and does not survive the process that has started it."""
    note = tmp_path / "pid"
    Program(tmp_path / "docker-credential-test", f"open({str(note)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    config = tmp_path / "config.json"
    config.write_text('{"credsStore": "test"}')
    async with open_fetcher(settings_for(docker_config=str(config))) as client:
        asking = asyncio.create_task(state(client, parse_reference("quay.io/team/app:1")))
        for _ in range(2):  # it is asked once more
            await eventually(lambda: note.exists() and note.read_text() != "")
            pid = int(note.read_text())
            note.unlink()
            os.kill(await pid_of(client), signal.SIGKILL)
            await eventually(partial(_is_alive, pid), lambda alive: not alive)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


SERVICE = """
import asyncio
from extender.config.registry_section import RegistryConfig
from extender.fetcher.fetcher_client import open_fetcher

async def serve():
    async with open_fetcher(RegistryConfig()) as client:
        await client.check()
        print((await client.running()).pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(serve())
"""


async def test_it_ends_with_the_service_whatever_it_does() -> None:
    """Stopped, it does nothing at all, and does not see its socket end."""
    service = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVICE, stdout=subprocess.PIPE)
    assert service.stdout
    pid = int(await service.stdout.readline())
    os.kill(pid, signal.SIGSTOP)
    service.kill()
    await service.wait()
    try:
        await eventually(partial(_is_alive, pid), lambda alive: not alive, seconds=10)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def test_a_rewrite_that_tries_for_ever_costs_its_own_image(registry: EmbeddedRegistry, tmp_path: Path) -> None:
    file = tmp_path / "registries.yaml"
    rewrite = r"{^slow/(a+)+$: x, ^slow/(.*)$: team/$1}"
    file.write_text(f"mirrors: {{quay.io: {{endpoint: ['http://{registry.host}'], rewrite: {rewrite}}}}}")
    ends = {cause: counter.value for cause, counter in ENDS.items()}
    async with open_fetcher(settings_for(registry.host, mirrors=str(file))) as client:
        slow = parse_reference(f"quay.io/slow/{'a' * 60}b:1")
        found = await asyncio.gather(
            state(client, slow), state(client, app_at(registry)), state(client, parse_reference("quay.io/slow/app:1"))
        )
    assert list(found) == [Cause.NOT_ALLOWED, IMAGE.digest, IMAGE.digest]
    assert {cause: counter.value for cause, counter in ENDS.items()} == ends


def _is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


async def test_fetcher_ends_with_its_service(registry: EmbeddedRegistry) -> None:
    """However the service ends, whose event loop is uvloop's: its socket does."""
    code = (
        "import asyncio, uvloop\n"
        "from extender.fetcher.fetcher_client import open_fetcher\n"
        "from extender.config.registry_section import RegistryConfig\n"
        "async def main():\n"
        "    async with open_fetcher(RegistryConfig(timeout_seconds=5)) as client:\n"
        "        print((await client.running()).pid, flush=True)\n"
        "        await asyncio.sleep(600)\n"
        "uvloop.run(main())\n"
    )
    service = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=subprocess.PIPE)
    assert service.stdout
    pid = int(await asyncio.wait_for(service.stdout.readline(), 30))
    service.kill()
    await service.wait()
    await eventually(lambda: not _is_alive(pid))


@pytest.mark.parametrize(
    ("program", "without"),
    [("extender.cli.serve", ("extender.registry.", "rich")), ("extender.fetcher.__main__", ("rich", "uvloop"))],
)
async def test_a_process_imports_nothing_that_it_has_no_use_for(program: str, without: tuple[str, ...]) -> None:
    """What parses answers of registries is in the fetcher alone, and what draws on terminals in neither."""
    code = f"import sys, {program}; print([name for name in sys.modules if name.startswith({without})])"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=subprocess.PIPE)
    output, _ = await process.communicate()
    assert output.strip() == b"[]"
