"""The staircase: a module imports only from the rows above it; and other rules of the house."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = "django_durable_jobs"
FOLDER = Path(__file__).resolve().parent.parent / PACKAGE

# One row a line, from the foundations up. A room is a module or a folder of modules.
ROWS = [
    "errors states compat conf signals audit strictjson ids",
    "jobspec recurrence retry parameters turns catchup fields",
    "registry",
    "db",
    "models migrations",
    "namespaces enqueueing jobs refreshing lookup selecting claims insight explaining doctor"
    " figures retention ticks",
    "ticker loops",
    "worker",
    "receivers checks admin backends testing contrib apps management pytest_plugin",
]
RANKS = {room: rank for rank, row in enumerate(ROWS) for room in row.split()}

MODULES = sorted(FOLDER.rglob("*.py"))
LONGEST = 400
FORBIDDEN = re.compile(r"mark_safe|\|\s*safe\b|pickle|csrf_exempt")
TEXTS = {".py", ".html", ".txt", ".js", ".css", ".sql"}


def room_of(module: Path) -> str:
    """Return the room that a file of the package is in; "" for the public names."""
    parts = module.relative_to(FOLDER).with_suffix("").parts
    return "" if parts == ("__init__",) else parts[0]


def is_room(name: str) -> bool:
    return name in RANKS or (FOLDER / name).is_dir() or (FOLDER / f"{name}.py").is_file()


def imported_rooms(source: str, module: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, room) for each import of our own, wherever it stands; "" for public names."""
    package = (PACKAGE, *module.relative_to(FOLDER).parent.parts)
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names]
            case ast.ImportFrom():
                start = package[: len(package) + 1 - node.level] if node.level else ()
                base = ".".join([*start, *filter(None, [node.module])])
                names = [f"{base}.{alias.name}" for alias in node.names]
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]):
                if ast.unparse(function).split(".")[-1] in ("import_module", "import_string"):
                    names = [name]
        for name in names:
            top, *rest = name.split(".")
            if top == PACKAGE:
                yield node.lineno, rest[0] if rest and is_room(rest[0]) else ""


def problems(source: str, module: Path) -> Iterator[str]:
    """Yield what in this module goes against the layering rule."""
    room = room_of(module)
    if not room:
        return
    where = module.relative_to(FOLDER.parent)
    if room not in RANKS:
        yield f"{where}: add {room!r} to a row of DESIGN's table, and to ROWS in {__file__}"
        return
    for line, other in imported_rooms(source, module):
        if not other:
            yield f"{where}:{line}: import from the module, not from the package's public names"
        elif other not in RANKS:
            yield f"{where}:{line}: imports {other!r}, which is in no row of DESIGN's table"
        elif RANKS[other] > RANKS[room]:
            yield f"{where}:{line}: {room!r} may not import from {other!r}, a row further down"


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_a_module_imports_only_from_its_own_row_and_those_above(module: Path) -> None:
    assert list(problems(module.read_text(), module)) == []


def test_rooms_of_one_row_do_not_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for module in MODULES:
        room = room_of(module)
        others = {other for _, other in imported_rooms(module.read_text(), module)}
        graph.setdefault(room, set()).update(
            other
            for other in others - {room, ""}
            if room and RANKS.get(other) == RANKS.get(room, -1)
        )
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"these import each other in a circle: {' < '.join(error.args[1])}")


@pytest.mark.parametrize(
    ("module", "source", "count"),
    [
        ("jobspec.py", "from django_durable_jobs.errors import X", 0),
        ("jobspec.py", "from .errors import X\nfrom . import states\nimport django", 0),
        ("jobspec.py", "from django_durable_jobs.retry import X", 0),
        ("jobspec.py", "from django_durable_jobs.worker.loop import X", 1),
        ("jobspec.py", "from . import worker", 1),
        ("jobspec.py", "def f():\n    from .models import Job", 1),
        ("jobspec.py", "if TYPE_CHECKING:\n    from django_durable_jobs.models import Job", 1),
        ("jobspec.py", "import_module('django_durable_jobs.models')", 1),
        ("jobspec.py", "from django_durable_jobs import enqueue", 1),
        ("models/job.py", "from .execution import Execution\nfrom ..db import clock", 0),
        ("models/job.py", "from .. import jobs", 1),
        ("management/commands/runscheduler.py", "from ...worker import Scheduler", 0),
        ("novel.py", "", 1),
        ("jobs.py", "from django_durable_jobs.errors import A\nimport django_durable_jobs.apps", 1),
        ("__init__.py", "from django_durable_jobs.worker import Scheduler", 0),
    ],
)
def test_the_rule_sees_what_it_should(module: str, source: str, count: int) -> None:
    assert len(list(problems(source, FOLDER / module))) == count


def test_no_module_is_longer_than_a_sitting() -> None:
    lengths = {
        str(module.relative_to(FOLDER)): len(module.read_text().splitlines())
        for module in MODULES
        if room_of(module) != "migrations"
    }
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}


def test_no_module_is_named_for_nothing_in_particular() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "misc"}
    assert [path for path in FOLDER.rglob("*") if path.stem in vague] == []


def test_nothing_in_the_package_goes_around_escaping_csrf_or_safe_formats() -> None:
    found = [
        f"{path.relative_to(FOLDER)}:{number}: {line.strip()}"
        for path in sorted(FOLDER.rglob("*"))
        if path.suffix in TEXTS
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if FORBIDDEN.search(line)
    ]
    assert found == []
