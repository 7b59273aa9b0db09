"""What operators do to rows: ask first, do it one by one, and tell what was and was not done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.db import connections
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.dateparse import parse_datetime
from django.utils.functional import Promise
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from ..db import current_clock
from ..errors import DurableJobsError
from ..namespaces import database
from . import shown
from .base import ASSETS, MOST_COUNTED, CappedPaginator, MixinBase, link_to_job, may
from .stretches import is_key_of

# One form's worth: Django takes no more than a thousand fields.
MOST_AT_ONCE = 500
MOST_TOLD = 10
REASON_MAX_CHARS = 1_024


class Refused(Exception):
    """It was not done; the message tells the operator why."""


WHY = _("Reason, kept for whoever looks (may be left out)")
GONE = _("It does not exist any more.")


@dataclass(frozen=True, slots=True)
class Answer:
    """What an operator said with the yes. ``asked_at`` is when the question was put."""

    by: str = ""
    reason: str = ""
    force: bool = False
    asked_at: datetime | None = None
    tick: datetime | None = None
    seen: Mapping[str, str] = field(default_factory=dict)  # revisions, by the rows' keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """One thing an operator may do: how it is called, asked for and told of.

    ``do`` does it to one row and returns the id of the job that it put in, if any; what it raises
    says why it was not done.
    """

    name: str
    permission: str  # its codename; "" where it goes by the right to change the row
    button: Promise
    yes: Promise
    title: Promise
    explanation: Promise
    done: Promise  # with %(count)d
    logged: Promise
    suits: Callable[[Any], bool]
    do: Callable[[Any, Answer], UUID | None]
    states: tuple[str, ...] = ()  # those that suit, where a filter is to be narrowed to them
    takes_reason: bool = False
    needs_reason: bool = False
    reason_label: Promise = WHY
    takes_force: bool = False


@dataclass(slots=True)
class Report:
    """To which rows it was done (and which jobs that put in), and why not to the others."""

    done: list[tuple[Any, UUID | None]] = field(default_factory=list)
    refused: list[tuple[Any, Any]] = field(default_factory=list)


def perform(deed: Deed, chosen: Sequence[Any], answer: Answer) -> Report:
    """Do it to each row, in a transaction of its own: one that changed meanwhile is reported."""
    report = Report()
    for row in chosen:
        try:
            report.done.append((row, deed.do(row, answer)))
        except (DurableJobsError, Refused) as error:
            report.refused.append((row, error))
        except ValueError as error:  # a row edited by hand, whose JSON cannot be read
            problem = _("Its row cannot be read (%(error)s).") % {"error": error}
            report.refused.append((row, problem))
    return report


class SteeringAdminMixin(MixinBase):
    """Offer deeds, on a page and for a selection: each by POST, after a page that asks."""

    deeds: tuple[Deed, ...] = ()
    none_such: Any = _("No such row.")

    @property
    def media(self) -> Any:
        return super().media + ASSETS

    def may_do(self, request: HttpRequest, deed: Deed) -> bool:
        return self.has_view_permission(request) and may(request, deed.permission)

    def name_of(self, row: Any) -> str:
        """Return what a row is called where it is told what became of it; "" for a count alone."""
        return str(row)

    def note_on(self, row: Any) -> str:
        """Return what else the page that asks tells of a row."""
        return ""

    def revision_of(self, row: Any) -> str:
        """Return what tells whether the row was changed since the page asked; "" for nothing."""
        return ""

    def deeds_for(self, request: HttpRequest, row: Any) -> list[tuple[Deed, str]]:
        """Return what may be done to the row now, with the addresses to ask at."""
        return [
            (deed, reverse(self.url_name(deed.name), args=[row.pk]))
            for deed in self.deeds
            if deed.suits(row) and self.may_do(request, deed)
        ]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        chosen = request.POST.getlist(ACTION_CHECKBOX_NAME)
        if not all(is_key_of(self.model, key) for key in chosen):
            self.message_user(request, self.none_such, messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())
        return super().changelist_view(request, extra_context)

    def get_urls(self) -> list[URLPattern]:
        own = [
            path(
                f"<path:object_id>/{deed.name}/",
                self.posted(partial(self.deed_view, deed)),
                name=self.url_name(deed.name, ""),
            )
            for deed in self.deeds
        ]
        return own + super().get_urls()

    def posted(self, view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        """Return a view of ours as the site serves it: to staff, and by POST alone."""
        return self.admin_site.admin_view(require_POST(view))

    def deed_view(self, deed: Deed, request: HttpRequest, object_id: str) -> HttpResponse:
        """Do it to one row, after a page that asks."""
        if not self.may_do(request, deed):
            raise PermissionDenied
        row = self.get_object(request, object_id) if is_key_of(self.model, object_id) else None
        if row is None:
            self.message_user(request, self.none_such, messages.ERROR)
            return HttpResponseRedirect(reverse(self.url_name("changelist")))
        return self.steer(request, deed, [row], row=row)

    def steer(
        self,
        request: HttpRequest,
        deed: Deed,
        chosen: QuerySet[Any] | Sequence[Any],
        *,
        action: str = "",
        row: Any = None,
        **questions: Any,
    ) -> HttpResponse:
        """Ask, or do it when the answer is here; ``row`` where it began on a row's page.

        ``questions`` are what else the page is to ask. All that a filter matches is taken in
        batches: after each the page asks for the next, below the last key of the one before, so
        that what was refused is not come upon again.
        """
        back = request.get_full_path() if row is None else self.page_of(row)
        across = bool(deed.states) and action and request.POST.get("select_across") == "1"
        asked_for = {"action": action, "across": across, **questions}
        if "confirmed" not in request.POST:
            return self._ask_for_some(request, deed, chosen, back, **asked_for)
        if across:
            keys = request.POST.getlist(ACTION_CHECKBOX_NAME)[:MOST_AT_ONCE]
            rows = list(chosen.filter(pk__in=keys))  # type: ignore[union-attr]
        else:
            rows = list(chosen[:MOST_AT_ONCE])
        if self.do(request, deed, rows) and across and rows:
            below = chosen.filter(pk__lt=min(row.pk for row in rows))  # type: ignore[union-attr]
            if below.filter(state__in=deed.states).exists():
                return self._ask_for_some(request, deed, below, back, **asked_for)
        return HttpResponseRedirect(back)

    def _ask_for_some(
        self, request: HttpRequest, deed: Deed, chosen: Any, back: str, **questions: Any
    ) -> HttpResponse:
        """Ask for as many as are done at once, and tell how many more there are."""
        if questions["across"]:
            chosen = chosen.filter(state__in=deed.states)
        rows = list(chosen[: MOST_AT_ONCE + 1])
        told: dict[str, Any] = {}
        if len(rows) > MOST_AT_ONCE:
            rows.pop()
            told["most"] = MOST_AT_ONCE
            if questions["across"]:
                told["all"] = CappedPaginator(chosen, MOST_AT_ONCE).count
                told["counted"] = MOST_COUNTED
        return self.ask(request, deed, rows, back, **told, **questions)

    def ask(
        self, request: HttpRequest, deed: Deed, rows: Sequence[Any], back: str, **more: Any
    ) -> HttpResponse:
        """Return the page that asks, by rows to which it can be done now and others."""
        request.current_app = self.admin_site.name
        return TemplateResponse(
            request,
            "admin/django_durable_jobs/confirm.html",
            {
                **self.admin_site.each_context(request),
                "title": deed.title,
                "opts": self.opts,
                "media": self.media,
                "deed": deed,
                "rows": [self._asked(row) for row in rows if deed.suits(row)],
                "others": [self._asked(row) for row in rows if not deed.suits(row)],
                "checkbox": ACTION_CHECKBOX_NAME,
                "reason_max": REASON_MAX_CHARS,
                "asked_at": current_clock().now(connections[database()]).isoformat(),
                "back": back,
                "reason": request.POST.get("reason", "")[:REASON_MAX_CHARS],
                **more,
            },
        )

    def _asked(self, row: Any) -> dict[str, Any]:
        return {
            "pk": row.pk,
            "name": str(row),
            "note": self.note_on(row),
            "revision": self.revision_of(row),
        }

    def answer_of(self, request: HttpRequest, deed: Deed) -> Answer:
        said = request.POST
        return Answer(
            by=request.user.get_username(),
            reason=said.get("reason", "").strip()[:REASON_MAX_CHARS] if deed.takes_reason else "",
            force=deed.takes_force and "force" in said,
            asked_at=moment_of(said.get("asked_at", "")),
            tick=moment_of(said.get("tick", "")),
            seen=dict(each.split(" ", 1) for each in said.getlist("seen") if " " in each),
        )

    def do(self, request: HttpRequest, deed: Deed, rows: Sequence[Any]) -> bool:
        """Do it, log it, and tell; False where the answer is not complete."""
        answer = self.answer_of(request, deed)
        if deed.needs_reason and not answer.reason:
            text = _("Nothing was done: say why, it is kept with what you do.")
            self.message_user(request, text, messages.ERROR)
            return False
        report = perform(deed, rows, answer)
        for row, job in report.done:
            said: list[Any] = [deed.logged]
            said += [_("With force.")] if answer.force else []
            said += [_("Tick: %s.") % answer.tick.isoformat()] if answer.tick else []
            said += [_("Job: %s.") % job] if job else []
            said += [_("Reason: %s") % answer.reason] if answer.reason else []
            self.log_change(request, row, " ".join(map(str, said)))
        self._tell(request, deed, report)
        return True

    def _tell(self, request: HttpRequest, deed: Deed, report: Report) -> None:
        if report.done:
            text = deed.done % {"count": len(report.done)}
            told = [self._told(*each) for each in report.done[:MOST_TOLD]]
            told += ["…"] if len(report.done) > MOST_TOLD else []
            names = format_html_join(", ", "{}", ((each,) for each in told if each))
            self.message_user(request, format_html("{} {}", text, names), messages.SUCCESS)
        for row, problem in report.refused[:MOST_TOLD]:
            name = self.name_of(row)
            why = format_html("<bdi>{}</bdi>: {}", name, problem) if name else problem
            text = format_html("{} {}", _("Not done:"), why)
            self.message_user(request, text, messages.WARNING)
        if len(report.refused) > MOST_TOLD:
            text = _("Not done: %d more.") % (len(report.refused) - MOST_TOLD)
            self.message_user(request, text, messages.WARNING)

    def _told(self, row: Any, job: UUID | None) -> Any:
        name = self.name_of(row)
        if not name:
            return ""
        if job is None:
            return shown.isolated(name)
        link = link_to_job(self.admin_site, job)
        return format_html("<bdi>{}</bdi> ({} {})", name, _("job"), link)

    def page_of(self, row: Any) -> str:
        return reverse(self.url_name("change"), args=[row.pk])

    def url_name(self, name: str, site: str | None = None) -> str:
        site = f"{self.admin_site.name}:" if site is None else site
        return f"{site}{self.opts.app_label}_{self.opts.model_name}_{name}"


def moment_of(text: str) -> datetime | None:
    """Return the aware time that a form of ours sent back; None for anything else."""
    try:
        moment = parse_datetime(text)
    except ValueError:
        return None
    return moment if moment is not None and moment.tzinfo is not None else None
