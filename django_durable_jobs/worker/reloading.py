"""The files that a worker's code is made of, and whether they have changed."""

from __future__ import annotations

import os
import stat
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from django.utils.autoreload import (
    BaseReloader,
    autoreload_started,
    iter_all_python_module_files,
)

# A file as it was last seen: time of its last change in nanoseconds, and size.
Seen = dict[Path, tuple[int, int]]

# The folders of installed packages, in which nobody adds files while a worker runs.
_INSTALLED = {"site-packages", "dist-packages"}


class Code:
    """The code of the process that makes this, as it is on disk from then on.

    All modules that are loaded, what Django and others watch besides (templates, translations),
    and every Python file of the packages that the project's own modules are in: a module that
    does not exist yet may be just what is missing.
    """

    def __init__(self) -> None:
        self._modules = frozenset(iter_all_python_module_files())
        self._roots = sorted({_root(path) for path in self._modules if _is_own(path)})
        self._others = BaseReloader()
        autoreload_started.send_robust(sender=self._others)
        self._pending: set[Path] = set()
        self._seen = self._look()

    def changed(self) -> list[Path]:
        """Return which files were changed, made or removed, once nothing more has since last time.

        So that a checkout of another branch, or an editor that saves by renaming, counts as one
        change.
        """
        before, self._seen = self._seen, self._look()
        paths = before.keys() | self._seen.keys()
        changed = {path for path in paths if before.get(path) != self._seen.get(path)}
        self._pending |= changed
        if changed:
            return []
        pending, self._pending = self._pending, set()
        return sorted(pending)

    def _look(self) -> Seen:
        seen: Seen = {}
        for path in self._files():
            if path.name.startswith((".", "#")) or path.name.endswith("~"):
                continue  # an editor's own
            try:
                status = path.stat()
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                seen[path] = status.st_mtime_ns, status.st_size
        return seen

    def _files(self) -> Iterable[Path]:
        files = set(self._modules) | set(self._others.extra_files)
        for folder, patterns in self._others.directory_globs.items():
            for pattern in patterns:
                files.update(folder.glob(pattern))
        for root in self._roots:
            files.update(_package_files(root))
        return files


def _is_own(path: Path) -> bool:
    """Tell whether a module is the project's: neither Python's nor out of an installed package."""
    library = Path(sysconfig.get_path("stdlib")).resolve()
    return _INSTALLED.isdisjoint(path.parts) and library not in path.parents


def _root(module: Path) -> Path:
    """Return the folder that a module's outermost package lies in."""
    folder = module.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


def _package_files(folder: Path | str) -> Iterator[Path]:
    """Yield the Python files of a folder and of the packages in it.

    It does not go into other folders: uploads or node_modules may lie there by the thousand.
    """
    try:
        with os.scandir(folder) as found:
            entries = list(found)
    except OSError:
        return
    for entry in entries:
        if entry.name.endswith(".py"):
            yield Path(entry.path)
        elif entry.is_dir(follow_symlinks=False) and os.path.isfile(f"{entry.path}/__init__.py"):
            yield from _package_files(entry.path)
