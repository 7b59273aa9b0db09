"""Recurrence rules: when something fires next, in any time zone. No query, no thread, no clock.

Cron("30 2 * * mon-fri", "Europe/Vienna").next_fire(timezone.now())
Every(timedelta(minutes=5), baseline="02:30").preview(3, timezone.now())
"""

from ..errors import InvalidRecurrence
from .base import Recurrence
from .cron import Cron
from .every import Every, next_baseline_fire
from .lint import PreviewLine, Slip, lint, preview_lines

__all__ = [
    "Cron",
    "Every",
    "InvalidRecurrence",
    "PreviewLine",
    "Recurrence",
    "Slip",
    "lint",
    "next_baseline_fire",
    "preview_lines",
]
