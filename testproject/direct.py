"""Count the standard library without the app, its jobs and its database: the demo's control."""

import ast
import sysconfig
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple


class Totals(NamedTuple):
    files: int
    lines: int
    words: int
    definitions: int


class _Counter(ast.NodeVisitor):
    def __init__(self) -> None:
        self.definitions = 0

    def _count(self, node: ast.AST) -> None:
        self.definitions += 1
        self.generic_visit(node)

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _count


def definitions(source: bytes) -> int:
    counter = _Counter()
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return 0
    counter.visit(tree)
    return counter.definitions


def of_file(path: Path) -> Totals:
    source = path.read_bytes()
    return Totals(1, source.count(b"\n"), len(source.split()), definitions(source))


def files() -> Iterator[Path]:
    for path in Path(sysconfig.get_path("stdlib")).rglob("*.py"):
        if not {"site-packages", "dist-packages", "__pycache__"} & set(path.parts):
            yield path


def totals() -> Totals:
    with ProcessPoolExecutor() as pool:
        counted = list(pool.map(of_file, files(), chunksize=50))
    return Totals(*map(sum, zip(*counted, strict=True)))
