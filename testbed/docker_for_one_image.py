"""Stands in for the docker command where there is no container engine: the one image is run from this checkout.

`python docker_for_one_image.py IMAGE ARGUMENTS…` does what `docker ARGUMENTS…` would. `docker run` of IMAGE starts the
command with an environment of its own, and takes files of its volumes from where they are here; of any other image, or
with an option that is not known here, it fails. What only writes to a registry is printed.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_FLAGS = ("--detach", "--read-only", "--rm")
_VALUED = ("--publish", "--user", "--volume")
_END_SECONDS = 30.0


class UnknownArgument(Exception):
    """The message is the argument."""


def main(image: str, *arguments: str) -> int:
    """Does it; returns the exit code."""
    match arguments:
        case ["run", *rest]:
            return run(image, rest)
        case ["stop", process]:
            return stop(int(process))
        case ["image", "inspect", *_] | ["buildx", "imagetools", "create", *_] | ["build", *_]:
            print("docker", *arguments)
            return 0
    raise UnknownArgument(" ".join(arguments))


def run(image: str, arguments: list[str]) -> int:
    """As `docker run`; with --detach the process's number stands for the container's."""
    volumes, is_detached = dict[str, str](), False
    rest = iter(arguments)
    for argument in rest:
        if argument in _FLAGS:
            is_detached |= argument == "--detach"
        elif argument in _VALUED:
            value = next(rest)
            if argument == "--volume":
                outside, inside, *_ = value.split(":")
                volumes[inside] = outside
        elif argument == image:
            break
        else:
            raise UnknownArgument(argument)
    command = [sys.executable, "-m", "extender", *(_outside(word, volumes) for word in rest)]
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8"}
    if not is_detached:
        return subprocess.run(command, env=environment, check=False).returncode
    with tempfile.NamedTemporaryFile(delete=False) as output:
        child = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    print(child.pid)
    return 0


def stop(process: int) -> int:
    """As `docker stop`."""
    os.kill(process, signal.SIGTERM)
    ends_at = time.monotonic() + _END_SECONDS
    while time.monotonic() < ends_at:
        if not Path(f"/proc/{process}").exists() or " Z " in Path(f"/proc/{process}/stat").read_text():
            return 0
        time.sleep(0.05)
    os.kill(process, signal.SIGKILL)
    return 1


def _outside(word: str, volumes: dict[str, str]) -> str:
    """Returns the argument with the paths of volumes as they are here."""
    for inside, outside in volumes.items():
        word = word.replace(inside, outside)
    return word


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except UnknownArgument as exc:
        print(f"docker: {exc} is not known here", file=sys.stderr)
        sys.exit(125)
