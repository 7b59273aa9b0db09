"""Check that a wheel holds the whole package and nothing else: `check_wheel.py WHEEL`."""

import sys
import zipfile
from pathlib import Path

PACKAGE = "django_durable_jobs"
ROOT = Path(__file__).resolve().parent.parent


def main(wheel: str) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / PACKAGE).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }
    # Compiled translations are kept in git, so that any way of installing brings them.
    wanted |= {f"{name[:-3]}.mo" for name in wanted if name.endswith(".po")}
    wanted |= {f"{PACKAGE}/py.typed", f"{PACKAGE}/locale/de/LC_MESSAGES/django.mo"}
    foreign = {name for name in held if name.split("/")[0] != PACKAGE and ".dist-info/" not in name}
    problems = [f"lacks {name}" for name in sorted(wanted - held)]
    problems += [f"should not hold {name}" for name in sorted(foreign)]
    if problems:
        sys.exit("\n".join(f"{wheel}: {problem}" for problem in problems))
    print(f"{Path(wheel).name}: {len(wanted)} files of {PACKAGE}, nothing missing, nothing foreign")


if __name__ == "__main__":
    main(sys.argv[1])
