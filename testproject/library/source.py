"""The files of the standard library that this Python runs on."""

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(sysconfig.get_path("stdlib"))
# Installed packages are not the library; what is compiled is not source.
SKIPPED = {"site-packages", "dist-packages", "__pycache__"}


def paths(package: str = "") -> Iterator[str]:
    """Yield each source file's path from ROOT on, with slashes: of one package, or of all."""
    if package and (ROOT / f"{package}.py").exists():
        yield f"{package}.py"
    for folder, folders, names in os.walk(ROOT / package):
        folders[:] = sorted(set(folders) - SKIPPED)
        for name in sorted(names):
            if name.endswith(".py"):
                yield Path(folder, name).relative_to(ROOT).as_posix()


def package_of(path: str) -> str:
    """Return the top-level package or module: "json" for json/decoder.py, "abc" for abc.py."""
    return path.split("/")[0].removesuffix(".py")


def version_of(path: str) -> str:
    """Return what changes when the file does, without reading it."""
    stat = (ROOT / path).stat()
    return f"{stat.st_size}-{stat.st_mtime_ns}"
