"""Ticks: what a leader writes of schedules, and what people ask of them."""

from .courses import course_of, recurrence_of_gap
from .deciding import Decision, decide
from .declaring import declare, retire
from .ending import note_ends
from .firing import fire, locked, nominal_time, tick_key
from .leading import LeadershipLost, leading
from .ledger import TickPruner, aprune_tick_claims, prune_tick_claims
from .steering import (
    afire_now,
    apause_schedule,
    aresume_schedule,
    fire_now,
    pause_schedule,
    resume_schedule,
)

__all__ = [
    "Decision",
    "LeadershipLost",
    "TickPruner",
    "afire_now",
    "apause_schedule",
    "aprune_tick_claims",
    "aresume_schedule",
    "course_of",
    "decide",
    "declare",
    "fire",
    "fire_now",
    "leading",
    "locked",
    "nominal_time",
    "note_ends",
    "pause_schedule",
    "prune_tick_claims",
    "recurrence_of_gap",
    "resume_schedule",
    "retire",
    "tick_key",
]
