"""Makes the root file system of the image: `make_root.py ROOT FOLDER`, which the Dockerfile runs in its first stage.

ROOT gets the virtual environment FOLDER, the interpreter that runs this file with its standard library, the shared
libraries that these load, and what a program needs of Debian: certificates, the order of name lookups, the linker's
cache, and the names of packages for scanners of vulnerabilities. It gets no shell, no package manager and no pip.

The same input gives the same bytes: every time is SOURCE_DATE_EPOCH, and PYTHONHASHSEED must be set, since constants
that are sets are written into bytecode in the order of their hashes.
"""

import compileall
import os
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

UNUSED_FOLDERS = {
    *("__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "turtledemo", "tkinter"),
    *("ensurepip", "lib2to3", "pydoc_data"),
}
"""Folders of the standard library that are left out."""

UNUSED_EXTENSIONS = re.compile(r"(_tkinter|_test|_ctypes_test|_xxtest|xxlimited|xxsubtype|readline|_curses|_gdbm|_dbm)")
"""Extension modules that are left out, and with them the libraries that only they load."""

SYSTEM = (
    "/etc/ld.so.cache",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/ssl",
    "/usr/lib/ssl",
    "/usr/share/ca-certificates",
)
PRIVATE = Path("/etc/ssl/private")
BY_NAME = "libgcc_s.so.1"
"""The C library loads it when a thread ends; no program names it."""

GENERATED = re.compile(r"/kubernetes_asyncio/client/(models|api)/(?!__init__\.py$)")
"""A model and a client for each kind of Kubernetes, 22 MB that `extender.cluster.configuration` does not import."""

UNCOMPILED = re.compile(r"/pydantic/v1/|/pygments/(lexers|styles)/|/(distutils|unittest)/|/turtle\.py$")
"""Modules that are there for completeness and not imported."""

SOURCES = {".h", ".md", ".pxd", ".pxi", ".pyi", ".pyx", ".rst"}
"""What programs are made from or read by people; licences are in folders that keep all of their files."""

KEEPS_ALL = ".dist-info"


class Root:
    """A root file system that is filled with files of this one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.copied: set[Path] = set()

    def add(self, path: Path) -> None:
        """Copies a file, or a folder with all that is in it, to the same path, with the symbolic links on the way."""
        self._lead_to(path.parent)
        if path.is_symlink():
            if (led := self._add_link(path)).exists():
                self.add(led)
        elif path.is_dir():
            self.target(path).mkdir(exist_ok=True)
            for entry in sorted(path.iterdir()):
                if not self._is_left_out(entry):
                    self.add(entry)
        elif path not in self.copied:
            shutil.copyfile(path, self.target(path))
            self.target(path).chmod(path.stat().st_mode)
            self.copied.add(path)

    def _is_left_out(self, path: Path) -> bool:
        if path.suffix in SOURCES:
            return not any(part.endswith(KEEPS_ALL) for part in path.parts)
        return path.name == "__pycache__" or path == PRIVATE or GENERATED.search(str(path)) is not None

    def target(self, path: Path) -> Path:
        """Returns where a path of this file system is in the new one."""
        return self.folder / path.relative_to("/")

    def _lead_to(self, folder: Path) -> None:
        """Makes the folder, with symbolic links where this file system has them, such as /lib."""
        for part in [*reversed(folder.parents), folder]:
            if part.is_symlink():
                self._lead_to(self._add_link(part))
            else:
                self.target(part).mkdir(exist_ok=True)

    def _add_link(self, link: Path) -> Path:
        """Makes the symbolic link, and returns the path that it leads to."""
        if not self.target(link).is_symlink():
            self.target(link).symlink_to(link.readlink())
        return Path(os.path.normpath(link.parent / link.readlink()))


def standard_library() -> Iterator[Path]:
    """Yields what is copied of the standard library."""
    library = Path(sysconfig.get_path("stdlib"))
    for entry in sorted(library.iterdir()):
        if entry.name == "lib-dynload":
            yield from (each for each in sorted(entry.iterdir()) if not UNUSED_EXTENSIONS.match(each.name))
        elif entry.name not in UNUSED_FOLDERS and not entry.name.startswith("config-"):
            yield entry


def libraries(files: Iterable[Path]) -> Iterator[Path]:
    """Yields the shared libraries that programs and libraries load, as the dynamic linker finds them."""
    listed = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False).stdout
    if missing := re.findall(r"^\t(\S+) => not found", listed, re.MULTILINE):
        raise SystemExit(f"no library {', '.join(sorted(set(missing)))} is here")
    found = re.findall(r"^\t(?:\S+ => )?(/\S+) \(0x", listed, re.MULTILINE)
    yield from sorted({Path(os.path.normpath(each)) for each in found})  # a program may state bin/../lib
    cache = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    yield from (Path(each) for each in re.findall(rf"{re.escape(BY_NAME)} .* => (/\S+)", cache)[:1])


def is_elf(path: Path) -> bool:
    """Whether the file is a program or a shared library."""
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def name_packages(root: Root) -> None:
    """Writes which of Debian's packages the files are from, where scanners look for it in images without dpkg."""
    if shutil.which("dpkg-query") is None:
        return
    merged = {
        path.relative_to("/usr") if path.is_relative_to("/usr") else "usr" / path.relative_to("/")
        for path in root.copied
    }
    paths = sorted({*root.copied, *(Path("/", path) for path in merged)})  # it knows a file by one of its two names
    found = subprocess.run(["dpkg-query", "--search", *paths], capture_output=True, text=True, check=False).stdout
    status = root.folder / "var/lib/dpkg/status.d"
    status.mkdir(parents=True)
    owners = (line.partition(": /")[0] for line in found.splitlines() if not line.startswith("diversion by "))
    for name in sorted({name for each in owners for name in each.split(", ")}):
        told = subprocess.run(["dpkg-query", "--status", name], capture_output=True, text=True, check=True).stdout
        (status / name.partition(":")[0]).write_text(told)


def settle(root: Path, epoch: int) -> None:
    """Gives every file and folder the same time and the usual rights, whatever the checkout's are."""
    for path in [root, *root.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.utime(path, (epoch, epoch), follow_symlinks=False)


def main() -> None:
    """Makes the root that the arguments name."""
    root, home = Root(Path(sys.argv[1])), Path(sys.argv[2])
    if os.environ.get("PYTHONHASHSEED", "random") == "random":
        raise SystemExit("set PYTHONHASHSEED, or the bytecode differs from build to build")
    root.folder.mkdir()
    for path in (home, Path(sys.executable), *standard_library(), *map(Path, SYSTEM)):
        if path.exists():
            root.add(path)
    for library in libraries(path for path in sorted(root.copied) if is_elf(path)):
        root.add(library)
    name_packages(root)
    compiled = compileall.compile_dir(
        root.folder,
        maxlevels=20,
        quiet=1,
        workers=0,
        rx=UNCOMPILED,
        stripdir=root.folder,
        prependdir="/",
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    (root.folder / "tmp").mkdir(exist_ok=True)
    settle(root.folder, int(os.environ["SOURCE_DATE_EPOCH"]))
    (root.folder / "tmp").chmod(0o1777)
    raise SystemExit(not compiled)


if __name__ == "__main__":
    main()
