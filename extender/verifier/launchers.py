"""Programs that start another one: which of their arguments is that program, as far as their arguments say it.

Sources: the manual pages of each. What a launcher does not know itself, such as the folders of a supervisor, is not
known here.
"""

import posixpath
import re
import shlex
from collections.abc import Sequence

import msgspec

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")


class Launcher(msgspec.Struct, frozen=True):
    """What stands before the program: options, of which those of `with_value` take the next argument, and operands.

    `operands` is how many: gosu's is the user.
    """

    with_value: frozenset[str] = frozenset()
    operands: int = 0


_INIT = Launcher(frozenset({"-p", "-e"}))
_AS_USER = Launcher(operands=1)
_PRIVILEGES = frozenset(
    ("--ambient-caps", "--apparmor-profile", "--bounding-set", "--egid", "--euid", "--groups", "--inh-caps",
     "--landlock-access", "--landlock-rule", "--pdeathsig", "--ptracer", "--regid", "--reuid", "--rgid", "--ruid",
     "--seccomp-filter", "--securebits", "--selinux-label")
)  # fmt: skip
_LAUNCHERS = {
    "tini": _INIT,
    "docker-init": _INIT,
    "dumb-init": Launcher(frozenset({"-r", "--rewrite"})),
    "catatonit": Launcher(),
    "env": Launcher(frozenset({"-u", "--unset", "-C", "--chdir"})),
    "gosu": _AS_USER,
    "su-exec": _AS_USER,
    "setpriv": Launcher(_PRIVILEGES),
    "s6-setuidgid": _AS_USER,
    "s6-envuidgid": _AS_USER,
    "s6-applyuidgid": Launcher(frozenset({"-u", "-g", "-G"})),
    "chpst": Launcher(frozenset(f"-{letter}" for letter in "uUbenmdofpcrtl/")),
    "nice": Launcher(frozenset({"-n", "--adjustment"})),
    "ionice": Launcher(frozenset({"-c", "-n", "--class", "--classdata"})),
    "nohup": Launcher(),
    "setsid": Launcher(),
    "stdbuf": Launcher(frozenset({"-i", "-o", "-e", "--input", "--output", "--error"})),
    "taskset": Launcher(operands=1),
    "timeout": Launcher(frozenset({"-k", "--kill-after", "-s", "--signal"}), operands=1),
}
_DOWNLOADED = re.compile(r"(tini|dumb-init|catatonit|gosu|su-exec)[-_.].*")
"""Those that images often have under the names of their releases: `tini-static`, `dumb-init_1.2.5_x86_64`."""
_OF_WORDS = frozenset(
    ("sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "fish", "csh", "tcsh", "rbash", "pwsh", "cmd", "powershell",
     "execlineb", "s6-svscan", "s6-supervise", "s6-linux-init", "runit", "runit-init", "runsv", "runsvdir", "init",
     "openrc-init", "systemd", "su", "sudo", "doas", "runuser", "chroot", "unshare", "nsenter", "xargs")
)  # fmt: skip
"""Shells, supervisors, and others of which the arguments do not say what they start."""


def starts_what_words_say(name: str) -> bool:
    """Whether a program of this name is a shell or the like: what it starts stands in no file's head."""
    return name.removesuffix(".exe") in _OF_WORDS


def command_of(name: str, arguments: Sequence[str]) -> Sequence[str] | None:
    """The arguments of the program that a launcher of this name starts, itself first, if it gets these arguments.

    Empty if they name none, and None if the name is no launcher's.
    """
    downloaded = _DOWNLOADED.fullmatch(name)
    launcher = _LAUNCHERS.get(downloaded[1] if downloaded else name)
    if launcher is None:
        return None
    rest, operands = list(arguments), launcher.operands
    while rest:
        word = rest.pop(0)
        if word == "--":
            return rest[operands:]
        if name == "env" and word.partition("=")[0] in ("-S", "--split-string"):
            rest[:0] = _split(word.partition("=")[2] or (rest.pop(0) if rest else ""))
        elif word in launcher.with_value:
            rest = rest[1:]
        elif word.startswith("-") or (name == "env" and _ASSIGNMENT.match(word)):
            if word.startswith("PATH="):  # which the search for the program would have to go by
                return ()
        elif operands:
            operands -= 1
        else:
            return [word, *rest]
    return ()


def applet_of(arguments: Sequence[str]) -> Sequence[str]:
    """The arguments as the program takes them: of busybox and toybox, which are many programs, without their name."""
    is_many = posixpath.basename(arguments[0]) in ("busybox", "toybox")
    return arguments[1:] if is_many and len(arguments) > 1 else arguments


def _split(words: str) -> Sequence[str]:
    try:
        return shlex.split(words)
    except ValueError:
        return ()
