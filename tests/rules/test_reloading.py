"""When code counts as changed."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from pathlib import Path

import pytest

from django_durable_jobs.worker import reloading
from django_durable_jobs.worker.reloading import Code


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of one package, as if it were all that is loaded."""
    (tmp_path / "shop").mkdir()
    for name in ("manage.py", "shop/__init__.py", "shop/jobs.py", "shop/lazy.py"):
        (tmp_path / name).write_text("x = 1\n")
    loaded = [tmp_path / "shop/__init__.py", tmp_path / "shop/jobs.py"]
    monkeypatch.setattr(reloading, "iter_all_python_module_files", lambda: loaded)
    return tmp_path


def settled(code: Code) -> list[str]:
    """Look until nothing more changes; return the names of what did."""
    for _ in range(3):
        if changed := code.changed():
            return [path.name for path in changed]
    return []


def test_nothing_has_changed_at_first(project: Path) -> None:
    assert settled(Code()) == []


def test_a_change_is_told_once_and_when_nothing_more_changes(project: Path) -> None:
    code = Code()
    (project / "shop/jobs.py").write_text("x = 22\n")
    assert code.changed() == []
    (project / "shop/lazy.py").write_text("x = 22\n")
    assert code.changed() == []
    assert [path.name for path in code.changed()] == ["jobs.py", "lazy.py"]
    assert code.changed() == []


def test_a_touch_is_a_change_and_so_is_an_older_file_in_its_place(project: Path) -> None:
    code = Code()
    os.utime(project / "shop/jobs.py", (1, 1))
    assert settled(code) == ["jobs.py"]


@pytest.mark.parametrize(
    "name",
    ["shop/mail.py", "manage.py", "more/__init__.py", "shop/part/__init__.py"],
)
def test_files_that_no_module_was_loaded_from_belong_to_it_too(project: Path, name: str) -> None:
    code = Code()
    path = project / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("x = 333\n")
    assert settled(code) == [path.name]


def test_a_file_that_is_gone_is_a_change(project: Path) -> None:
    code = Code()
    (project / "shop/lazy.py").unlink()
    assert settled(code) == ["lazy.py"]


@pytest.mark.parametrize(
    "name", ["shop/.#jobs.py", "shop/notes.txt", "media/upload.py", "shop/jobs.py~"]
)
def test_other_files_are_none_of_it(project: Path, name: str) -> None:
    code = Code()
    path = project / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("x = 333\n")
    assert settled(code) == []


def test_of_python_and_of_installed_packages_only_what_is_loaded_is_watched() -> None:
    code = Code()
    assert Path(logging.__file__).resolve() in code._seen
    assert Path(pytest.__file__).resolve() in code._seen
    roots = {str(root) for root in code._roots}
    assert not any("site-packages" in root for root in roots)
    assert str(Path(logging.__file__).resolve().parents[1]) not in roots
    assert str(Path(__file__).resolve().parents[2]) in roots


def test_what_is_imported_later_is_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "late.py").write_text("x = 1\n")
    code = Code()
    spec = importlib.util.spec_from_file_location("late", tmp_path / "late.py")
    assert spec is not None
    monkeypatch.setitem(sys.modules, "late", importlib.util.module_from_spec(spec))
    assert tmp_path / "late.py" in reloading.iter_all_python_module_files()
    assert settled(code) == []
