"""The jobs of this app: found by their module's name when Django starts."""

import ast
import warnings
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.db.models import Count, F, Max, Sum
from django.utils import timezone

from django_durable_jobs import Discard, enqueue_many, job, schedule

from .models import SourceFile
from .source import ROOT, package_of, version_of

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

# What the compiler thinks of the files it reads here is not our affair.
warnings.filterwarnings("ignore", category=SyntaxWarning, module="<unknown>")


@job("library.index")
def index_file(path: str) -> dict[str, Any]:
    """Count the lines, words and definitions of one file and store them.

    Some files of Python's own tests are no valid Python, on purpose: they have no definitions.
    """
    try:
        source = (ROOT / path).read_bytes()
    except FileNotFoundError:
        raise Discard(f"{path} is gone") from None
    counts = {"lines": source.count(b"\n"), "words": len(source.split())}
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        definitions, parsed = 0, False
    else:
        definitions = sum(isinstance(node, DEFINITIONS) for node in ast.walk(tree))
        parsed = True
    store(path, definitions=definitions, **counts)
    return {**counts, "definitions": definitions, "parsed": parsed}


@schedule("library.report", every=timedelta(seconds=10))
def report() -> dict[str, Any]:
    """Sum up what is indexed so far: the result is on the page of each run, in the admin."""
    newest = SourceFile.objects.aggregate(at=Max("indexed_at"))["at"]
    packages = SourceFile.objects.values("package").annotate(lines=Sum("lines"))
    largest = packages.order_by("-lines", "package").first()
    return {
        **totals_indexed(),
        "packages": packages.count(),
        "largest_package": largest and largest["package"],
        "newest": newest and newest.isoformat(),
    }


def totals_indexed() -> dict[str, int]:
    """Return the number of files that are indexed, and the sums of what they hold."""
    sums = SourceFile.objects.aggregate(
        files=Count("id"), lines=Sum("lines"), words=Sum("words"), definitions=Sum("definitions")
    )
    return {name: value or 0 for name, value in sums.items()}


def store(path: str, **counts: int) -> None:
    """Store what was counted; a file that changed keeps its row."""
    values = {**counts, "package": package_of(path), "indexed_at": timezone.now()}
    SourceFile.objects.update_or_create(
        path=path,
        defaults={**values, "times_indexed": F("times_indexed") + 1},
        create_defaults={**values, "times_indexed": 1},
    )


def enqueue_files(paths: Iterable[str]) -> list[Any]:
    """Enqueue one job for each file, owned by its package; return the jobs in the same order.

    The key names the file as it is now: enqueueing it again gives the job that exists
    (``job.created`` is False), a file that changed gets a job of its own.
    """
    return enqueue_many(
        {
            "type": index_file,
            "payload": {"path": path},
            "owner_id": package_of(path),
            "target": {"kind": "file", "id": path},
            "idempotency_key": f"library.index {path} {version_of(path)}",
        }
        for path in paths
    )
