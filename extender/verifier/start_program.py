"""Which program a container of an image would start, and whether that is for the platform that the image claims.

Follows what a runtime and the kernel do: the search path, links, `#!` interpreters, the dynamic loader. What they would
find in a volume, or what this does not know, refutes nothing: a wrong *refuted* is worse than a platform that stays
*claimed*.
"""

import posixpath
import re

import msgspec

from extender.images.platform import Platform
from extender.verifier.archive_reading import EntryType
from extender.verifier.image_files import Absent, FoundFile, ImageFiles
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
_WINDOWS_ROOT = "files"
_DRIVE = re.compile(r"[A-Za-z]:")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


class StartVerdict(msgspec.Struct, frozen=True):
    """What is known of the platform now. `state` is *verified*, *refuted* or *claimed*.

    `program` is the path of the program, and `detail` its machine, or why nothing is known: one short sentence.
    """

    state: PlatformState
    program: str = ""
    detail: str = ""


Judgement = StartVerdict | None


def judge_start(start: StartConfig, files: ImageFiles, platform: Platform) -> Judgement:
    """The verdict on a platform by the files that are known so far; None if the next layer must be read first."""
    if not start.arguments:
        return unknown("it names no program to start")
    if platform.architecture not in KNOWN_ARCHITECTURES:
        return unknown(f"nothing is known of programs for {platform.architecture}")
    if platform.os == "windows":
        return _judge_windows(start, files, platform)
    if platform.os != "linux":
        return unknown(f"nothing is known of programs for {platform.os}")
    return _Judge(start, files, platform).judge()


def unknown(why: str, program: str = "") -> StartVerdict:
    """The platform stays *claimed*."""
    return StartVerdict(PlatformState.CLAIMED, program, why)


class _Judge:
    def __init__(self, start: StartConfig, files: ImageFiles, platform: Platform) -> None:
        self._start = start
        self._files = files
        self._platform = platform

    def judge(self) -> Judgement:
        name = self._start.arguments[0]
        found = self._search(name)
        if found is Absent.UNREAD:
            return None
        if found is Absent.MISSING:
            return unknown(f"its program {_shown(name)} is not in the image")
        return self._follow(found, _MOST_INTERPRETERS)

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

    def _follow(self, file: FoundFile, left: int) -> Judgement:
        """The verdict on a program, and on the interpreters that it needs."""
        if file.entry.type is not EntryType.PROGRAM:
            return unknown(f"its program {_path_of(file)} may not be executed")
        head = file.entry.head
        match head.format:
            case Format.SCRIPT if left:
                return self._follow_script(head, left)
            case Format.ELF:
                return self._judge_elf(file, head)
            case Format.PE:
                return _refuted(file, head)
            case _:
                return unknown(f"its program {_path_of(file)} is of no format that is read here")

    def _follow_script(self, head: ProgramHead, left: int) -> Judgement:
        found = self._files.find(head.interpreter, self._start.folder)
        if found is Absent.UNREAD:
            return None
        if found is Absent.MISSING:
            return unknown(f"its interpreter {_shown(head.interpreter)} is not in the image")
        verdict = self._follow(found, left - 1)
        name = _run_by_env(head) if posixpath.basename(head.interpreter) == "env" else ""
        if not name or not isinstance(verdict, StartVerdict) or verdict.state is not PlatformState.VERIFIED:
            return verdict
        run = self._search(name)
        if run is Absent.UNREAD:
            return None
        if run is Absent.MISSING:
            return unknown(f"its interpreter {_shown(name)} is not in the image")
        return self._follow(run, left - 1)

    def _judge_elf(self, file: FoundFile, head: ProgramHead) -> Judgement:
        architecture = self._platform.architecture
        if not may_run(head.architecture, architecture):
            return _refuted(file, head)
        if head.architecture != architecture:
            return unknown(f"its program is for {machine_text(head)}, which some nodes run", _path_of(file))
        if not head.interpreter:
            return StartVerdict(PlatformState.VERIFIED, _path_of(file), machine_text(head))
        return self._judge_loader(file, head)

    def _judge_loader(self, file: FoundFile, program: ProgramHead) -> Judgement:
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


def _judge_windows(start: StartConfig, files: ImageFiles, platform: Platform) -> Judgement:
    """By the program's own path alone: what Windows searches besides depends on its registry."""
    name = _DRIVE.sub("", start.arguments[0], count=1).replace("\\", "/").lower()
    folder = _DRIVE.sub("", start.folder, count=1).replace("\\", "/").lower()
    path = posixpath.join("/", folder, name).strip("/")
    for each in (path, f"{path}.exe"):
        found = files.find(f"{_WINDOWS_ROOT}/{each}")
        if isinstance(found, FoundFile):
            return _judge_pe(found, platform)
        if found is Absent.UNREAD and each == path and path.endswith(".exe"):
            return None
    if files.find(f"{_WINDOWS_ROOT}/{path}.exe") is Absent.UNREAD:
        return None
    return unknown(f"its program {_shown(start.arguments[0])} is not where it says, or not in the image")


def _judge_pe(found: FoundFile, platform: Platform) -> Judgement:
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
    return StartVerdict(PlatformState.REFUTED, _path_of(file), machine_text(head))


def _run_by_env(head: ProgramHead) -> str:
    """The name of the program that `env` runs for a script; empty if that cannot be said."""
    words = head.argument.split()
    if words and words[0] == "-S":
        words = words[1:]
    elif len(words) > 1:
        return ""  # one argument with a space in it, which is the name of no program
    words = [word for word in words if not _ASSIGNMENT.match(word)]
    return words[0] if words and not words[0].startswith("-") else ""


def _path_of(file: FoundFile) -> str:
    return _shown(f"/{file.path}")


def _shown(name: str) -> str:
    """The name as it is shown: without its middle if it is long, and with nothing that cannot be printed."""
    text = "".join(letter if letter.isprintable() else "?" for letter in name)
    if len(text) <= MOST_PROGRAM_CHARACTERS:
        return text
    half = (MOST_PROGRAM_CHARACTERS - 1) // 2
    return f"{text[:half]}…{text[-half:]}"
