"""Which program a container of an image would start, and whether that is for the platform that the image claims.

Follows what a runtime and the kernel do: the search path, links, `#!` interpreters, the dynamic loader, and launchers
up to the program that they start. What they would find in a volume, or what this does not know, refutes nothing: a
wrong *refuted* is worse than a platform that stays *claimed*. What a shell or a script starts is not known.
"""

import posixpath
import re
from collections.abc import Sequence

import msgspec

from extender.images.platform import Platform
from extender.verifier.archive_reading import EntryType
from extender.verifier.image_files import Absent, FoundFile, ImageFiles
from extender.verifier.launchers import applet_of, command_of, starts_what_words_say
from extender.verifier.program_headers import (
    KNOWN_ARCHITECTURES,
    Format,
    ProgramHead,
    machine_text,
    may_run,
)
from extender.verifier.start_config import StartConfig
from extender.verifier.verification import MOST_PROGRAM_CHARACTERS, PlatformState

_MOST_INTERPRETERS = 5  # as in the kernel's exec_binprm
_MOST_LAUNCHERS = 5  # one after the other
_WINDOWS_ROOT = "files"
_DRIVE = re.compile(r"[A-Za-z]:")


class StartVerdict(msgspec.Struct, frozen=True):
    """What is known of the platform now. `state` is *verified*, *refuted* or *claimed*.

    `program` is the path of the program, and `detail` its machine, or why nothing is known: one short sentence. Of a
    program that refutes the platform, `architecture` is the one that it is for, if it is for the same system.
    """

    state: PlatformState
    program: str = ""
    detail: str = ""
    architecture: str = ""


def verify_start(start: StartConfig, files: ImageFiles, platform: Platform) -> StartVerdict | None:
    """The verdict on a platform by the files that are known so far; None if the next layer must be read first."""
    if not start.arguments:
        return unknown("it names no program to start")
    if platform.architecture not in KNOWN_ARCHITECTURES:
        return unknown(f"nothing is known of programs for {platform.architecture}")
    if platform.os == "windows":
        return _verify_windows(start, files, platform)
    if platform.os != "linux":
        return unknown(f"nothing is known of programs for {platform.os}")
    return _LinuxStart(start, files, platform).verify()


def unknown(why: str, program: str = "") -> StartVerdict:
    """The platform stays *claimed*."""
    return StartVerdict(PlatformState.CLAIMED, program, why)


class _LinuxStart:
    def __init__(self, start: StartConfig, files: ImageFiles, platform: Platform) -> None:
        self._start = start
        self._files = files
        self._platform = platform

    def verify(self) -> StartVerdict | None:
        return self._verify_command(self._start.arguments, _MOST_LAUNCHERS)

    def _verify_command(self, arguments: Sequence[str], left: int) -> StartVerdict | None:
        """The verdict on a program, and if that is a launcher on the one that it starts."""
        found = self._search(arguments[0])
        if not isinstance(found, FoundFile):
            return _unread_or(found, f"its program {_shown(arguments[0])} is not in the image")
        verdict = self._follow(found, _MOST_INTERPRETERS)
        started = _started_by(arguments, found) if _is_verified(verdict) else None
        if started is None:
            return verdict
        if not started or not left:
            return unknown(f"it is not known what its {_path_of(found)} starts", _path_of(found))
        return self._verify_command(started, left - 1)

    def _search(self, name: str) -> FoundFile | Absent:
        """The file that a runtime starts under a name: by its path, or the first in the search path."""
        if "/" in name:
            return self._files.find(name, self._start.folder)
        for folder in self._start.search_path:
            found = self._files.find(posixpath.join(folder or ".", name), self._start.folder)
            if found is Absent.UNREAD:
                return found
            if isinstance(found, FoundFile) and found.entry.type is EntryType.PROGRAM:
                return found
        return Absent.MISSING

    def _follow(self, file: FoundFile, left: int) -> StartVerdict | None:
        """The verdict on a program, and on the interpreters that it needs."""
        if file.entry.type is not EntryType.PROGRAM:
            return unknown(f"its program {_path_of(file)} may not be executed")
        head = file.entry.head
        match head.format:
            case Format.SCRIPT if left:
                return self._follow_script(file, left)
            case Format.ELF:
                return self._verify_elf(file, head)
            case Format.PE:
                return _refuted(file, head)
            case _:
                return unknown(f"its program {_path_of(file)} is of no format that is read here")

    def _follow_script(self, file: FoundFile, left: int) -> StartVerdict | None:
        """The verdict on the interpreters of a script. If they are right it is not known what the script starts."""
        head = file.entry.head
        by_env = _run_by_env(head) if posixpath.basename(head.interpreter) == "env" else ""
        for name in (head.interpreter, by_env) if by_env else (head.interpreter,):
            found = self._search(name) if name is by_env else self._files.find(name, self._start.folder)
            if not isinstance(found, FoundFile):
                return _unread_or(found, f"its interpreter {_shown(name)} is not in the image")
            verdict = self._follow(found, left - 1)
            if not _is_verified(verdict):
                return verdict
        return unknown(f"it is not known what its script {_path_of(file)} starts", _path_of(file))

    def _verify_elf(self, file: FoundFile, head: ProgramHead) -> StartVerdict | None:
        architecture = self._platform.architecture
        if not may_run(head.architecture, architecture):
            return _refuted(file, head)
        if head.architecture != architecture:
            return unknown(f"its program is for {machine_text(head)}, which some nodes run", _path_of(file))
        if not head.interpreter:
            return StartVerdict(PlatformState.VERIFIED, _path_of(file), machine_text(head))
        return self._verify_loader(file, head)

    def _verify_loader(self, file: FoundFile, program: ProgramHead) -> StartVerdict | None:
        """The verdict on a program of the right machine that a dynamic loader starts."""
        loader = self._files.find(program.interpreter)
        if loader is Absent.UNREAD:
            return None
        if loader is Absent.MISSING:
            return unknown(f"its loader {_shown(program.interpreter)} is not in the image", _path_of(file))
        head = loader.entry.head
        if head.format is Format.ELF and not may_run(head.architecture, self._platform.architecture):
            return _refuted(loader, head)
        if head.format is not Format.ELF or head.architecture != program.architecture:
            return unknown(f"its loader {_path_of(loader)} is not for {machine_text(program)}", _path_of(file))
        return StartVerdict(PlatformState.VERIFIED, _path_of(file), machine_text(program))


def _started_by(arguments: Sequence[str], found: FoundFile) -> Sequence[str] | None:
    """The command that a launcher starts, empty if that is not known; None if the program is no launcher."""
    command = applet_of(arguments)
    names = (posixpath.basename(command[0]), posixpath.basename(found.path))
    if any(map(starts_what_words_say, names)):
        return ()
    return next((each for name in names if (each := command_of(name, command[1:])) is not None), None)


def _unread_or(absent: Absent, why: str) -> StartVerdict | None:
    return None if absent is Absent.UNREAD else unknown(why)


def _is_verified(verdict: StartVerdict | None) -> bool:
    return verdict is not None and verdict.state is PlatformState.VERIFIED


def _verify_windows(start: StartConfig, files: ImageFiles, platform: Platform) -> StartVerdict | None:
    """By the program's own path alone: what Windows searches besides depends on its registry."""
    name = _DRIVE.sub("", start.arguments[0], count=1).replace("\\", "/").lower()
    folder = _DRIVE.sub("", start.folder, count=1).replace("\\", "/").lower()
    path = posixpath.join("/", folder, name).strip("/")
    for each in (path, f"{path}.exe"):
        found = files.find(f"{_WINDOWS_ROOT}/{each}")
        if isinstance(found, FoundFile):
            verdict = _verify_pe(found, platform)
            if verdict.state is PlatformState.VERIFIED and starts_what_words_say(posixpath.basename(found.path)):
                return unknown(f"it is not known what its {_path_of(found)} starts", _path_of(found))
            return verdict
        if found is Absent.UNREAD and each == path and path.endswith(".exe"):
            return None
    if files.find(f"{_WINDOWS_ROOT}/{path}.exe") is Absent.UNREAD:
        return None
    return unknown(f"its program {_shown(start.arguments[0])} is not where it says, or not in the image")


def _verify_pe(found: FoundFile, platform: Platform) -> StartVerdict:
    head = found.entry.head
    if head.format is Format.ELF:
        return _refuted(found, head)
    if head.format is not Format.PE:
        return unknown(f"its program {_path_of(found)} is of no format that is read here")
    if head.architecture == platform.architecture:
        return StartVerdict(PlatformState.VERIFIED, _path_of(found), machine_text(head))
    emulated = (head.architecture, platform.architecture) in _EMULATED
    if emulated or may_run(head.architecture, platform.architecture):
        return unknown(f"its program is for {machine_text(head)}, which some nodes run", _path_of(found))
    return _refuted(found, head)


_EMULATED = frozenset({("amd64", "arm64"), ("386", "arm64")})  # by Windows on Arm


def _refuted(file: FoundFile, head: ProgramHead) -> StartVerdict:
    architecture = head.architecture if head.format is Format.ELF else ""
    return StartVerdict(PlatformState.REFUTED, _path_of(file), machine_text(head), architecture)


def _run_by_env(head: ProgramHead) -> str:
    """The name of the program that `env` runs for a script; empty if that cannot be said."""
    option, _, words = head.argument.partition(" ")
    if option == "-S":
        return next(iter(command_of("env", ["-S", words]) or ()), "")
    return "" if words or option.startswith("-") else option  # else one argument with a space, which names no program


def _path_of(file: FoundFile) -> str:
    return _shown(f"/{file.path}")


def _shown(name: str) -> str:
    """The name as it is shown: without its middle if it is long, and with nothing that cannot be printed."""
    text = "".join(letter if letter.isprintable() else "?" for letter in name)
    if len(text) <= MOST_PROGRAM_CHARACTERS:
        return text
    half = (MOST_PROGRAM_CHARACTERS - 1) // 2
    return f"{text[:half]}…{text[-half:]}"
