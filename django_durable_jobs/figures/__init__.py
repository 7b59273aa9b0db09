"""How it went and how it stands, in numbers: what plots and operators' pages are made of.

Reads only. Each read is bounded, and goes along an index: of executions the newest 5,000 are
looked at (``recent``), of waiting jobs the 10,000 that have been due for longest (``standing``).
Other rooms of this floor may take ``percentile`` and ``Spread`` from here.
"""

from .ended import MOST_UNDECIDED, Failure, Undecided, failures, undecided
from .newest import NEWEST, Bucket, Lane, Recent, Run, recent
from .spans import SPANS, Span, Spread, percentile
from .waiting import MOST_SOON, MOST_WAITING, Backlog, OwnerShare, Reason, Soon, backlog, reasons

__all__ = [
    "MOST_SOON",
    "MOST_UNDECIDED",
    "MOST_WAITING",
    "NEWEST",
    "SPANS",
    "Backlog",
    "Bucket",
    "Failure",
    "Lane",
    "OwnerShare",
    "Reason",
    "Recent",
    "Run",
    "Soon",
    "Span",
    "Spread",
    "Undecided",
    "backlog",
    "failures",
    "percentile",
    "reasons",
    "recent",
    "undecided",
]
