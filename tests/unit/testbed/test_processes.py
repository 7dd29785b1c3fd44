"""Child processes: readiness, logs, a bounded end, and none that outlives us."""

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.processes import Process, ProcessFailed, free_port

SHELL = "/bin/sh"


def shell(script: str, folder: Path) -> Process:
    """A shell that runs the script."""
    return Process("shell", [SHELL, "-c", script], folder / "shell.log")


def test_a_process_that_becomes_ready_is_waited_for(tmp_path: Path) -> None:
    """wait_until returns once the condition holds, and the process goes on."""
    process = shell(f"touch {tmp_path}/ready; exec sleep 60", tmp_path)
    process.wait_until((tmp_path / "ready").exists, timeout_seconds=30)
    assert process.is_running
    process.stop(grace_seconds=5)
    assert not process.is_running


def test_a_process_that_ends_early_shows_its_log(tmp_path: Path) -> None:
    """The error has the exit status and what the program printed on either stream."""
    process = shell("echo out; echo bind: address already in use >&2; exit 3", tmp_path)
    with pytest.raises(ProcessFailed, match=r"(?s)shell ended with status 3.*out.*address already in use"):
        process.wait_until(lambda: False, timeout_seconds=30)


def test_a_process_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    """The time-out is an error with the log, and leaves the process to be stopped."""
    process = shell("exec sleep 60", tmp_path)
    with pytest.raises(ProcessFailed, match="shell was not ready in 0 s"):
        process.wait_until(lambda: False, timeout_seconds=0)
    process.stop(grace_seconds=5)


def test_a_process_deaf_to_sigterm_is_killed(tmp_path: Path) -> None:
    """kube-apiserver without etcd is such a one. (An ignored signal stays ignored through exec.)"""
    process = shell(f"trap '' TERM; touch {tmp_path}/ready; exec sleep 60", tmp_path)
    process.wait_until((tmp_path / "ready").exists, timeout_seconds=30)
    process.stop(grace_seconds=0.01)
    assert not process.is_running


def test_stopping_twice_is_fine(tmp_path: Path) -> None:
    """The second call finds nothing to do, and sends no signal to a process id that may be another's by now."""
    process = shell("exec sleep 60", tmp_path)
    process.stop(grace_seconds=5)
    process.stop(grace_seconds=5)


def test_a_child_does_not_get_our_ctrl_c(tmp_path: Path) -> None:
    """It leads a session of its own; otherwise etcd would end before kube-apiserver."""
    process = shell("exec sleep 60", tmp_path)
    assert os.getsid(process.pid) == process.pid
    process.stop(grace_seconds=5)


def test_a_child_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """SIGKILL leaves the parent no chance to clean up; the kernel does it."""
    script = (
        "import sys; from pathlib import Path; from testbed.processes import Process\n"
        "child = Process('sleep', ['/bin/sleep', '60'], Path(sys.argv[1]) / 'log')\n"
        "print(child.pid, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        ending = os.pidfd_open(int(parent.stdout.readline()))
        try:
            parent.send_signal(signal.SIGKILL)
            assert select.select([ending], [], [], 30)[0] == [ending]
        finally:
            os.close(ending)


def test_a_free_port_can_be_bound_and_is_outside_the_range_of_connections() -> None:
    """Ports above 32767 may go to an outgoing connection before a slow program binds them."""
    port = free_port()
    assert 20000 <= port < 32768
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))


def test_a_log_that_was_removed_is_said_to_be_gone(tmp_path: Path) -> None:
    """A report about a failed teardown is made after the log's folder is removed, and must not fail itself."""
    process = Process("sleeper", ["/bin/sleep", "60"], tmp_path / "sleeper.log")
    process.stop(10)
    (tmp_path / "sleeper.log").unlink()
    assert process.tail() == f"--- {tmp_path / 'sleeper.log'} is gone ---"
