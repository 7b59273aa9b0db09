"""What is said of a job: a code, facts, and the sentence that they make."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from .sentences import CODES, sentence
from .telling import Facts

__all__ = ["CODES", "READY", "Explanation", "Facts", "Reason"]

# A claim that comes now may take the job: it waits for its turn, or for nothing but a moment.
READY = frozenset({"claimable", "turn", "turn_owners", "asked_again"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Something that is to be said of a job.

    ``code`` is for programs and does not change; ``facts`` is a dict that JSON can hold, with
    times as ISO 8601 in UTC and spans in seconds.
    """

    code: str
    facts: Facts

    @property
    def sentence(self) -> str:
        """The same for people, in the language and the time zone that are active when asked."""
        return sentence(self.code, self.facts)

    def as_dict(self) -> dict[str, Any]:
        """Return code, sentence and facts, as JSON can hold them."""
        return {"code": self.code, "sentence": self.sentence, "facts": self.facts}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation(Reason):
    """Why a job is not running, or what became of it: what is to go away first, and ``also``.

    ``at`` is when it was looked at, by the database's clock.
    """

    job_id: UUID
    type: str
    state: str
    at: datetime
    also: tuple[Reason, ...] = ()

    def __str__(self) -> str:
        return " ".join(reason.sentence for reason in (self, *self.also))

    def as_dict(self) -> dict[str, Any]:
        """Return everything, as JSON can hold it."""
        return {
            "job_id": str(self.job_id),
            "type": self.type,
            "state": self.state,
            "at": self.at.isoformat(),
            "code": self.code,
            "sentence": self.sentence,
            "facts": self.facts,
            "also": [reason.as_dict() for reason in self.also],
        }
