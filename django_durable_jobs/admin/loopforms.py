"""The form of a loop record: help where it is needed, and a preview that saves nothing."""

from __future__ import annotations

import json
import zoneinfo
from collections.abc import Callable, Iterable
from functools import cache
from types import new_class
from typing import TYPE_CHECKING, Any

from django import forms
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from .. import registry
from ..errors import InvalidJob
from ..jobspec import PAYLOAD_MAX_BYTES
from ..loops import PREFIX
from ..strictjson import normalise

# The name of the button that asks for a preview.
PREVIEW = "_preview"
RECURRENCE = ("cron", "every", "baseline", "timezone")

if TYPE_CHECKING:
    FormBase = forms.ModelForm[Any]
else:
    FormBase = object


class LoopFormMixin(FormBase):
    """What the form of every loop record does, whichever form it is.

    It is never valid while a preview is asked for: so nothing is saved by it.
    """

    # Fields whose stored values this user may not see, and so neither what is wrong with them.
    secret_fields: tuple[str, ...] = ()

    @property
    def wants_preview(self) -> bool:
        return PREVIEW in self.data

    def is_valid(self) -> bool:
        return super().is_valid() and not self.wants_preview

    def clean(self) -> Any:
        """Leave the next time as it is stored by now, unless it was edited here.

        The record may have gone on since the page was shown: its old time would come back.
        """
        cleaned = super().clean()
        values = self.cleaned_data if cleaned is None else cleaned
        if "next_run_at" in values and "next_run_at" not in self.changed_data:
            values["next_run_at"] = self.instance.next_run_at
        return cleaned

    def add_error(self, field: str | None, error: Any) -> None:
        """Tell what is wrong with a field that is not on this form at the top of it."""
        if field is not None or not hasattr(error, "error_dict"):
            super().add_error(field, error)
            return
        for name, errors in error.error_dict.items():
            if name in self.fields or name == NON_FIELD_ERRORS:
                super().add_error(None if name == NON_FIELD_ERRORS else name, errors)
            else:
                super().add_error(None, self._elsewhere(name, errors))

    def _elsewhere(self, name: str, errors: Iterable[Any]) -> list[Any]:
        label = capfirst(str(self.instance._meta.get_field(name).verbose_name))
        if name in self.secret_fields:
            return [_("%s: what is stored does not fit; you may not see it.") % label]
        told = [message for error in errors for message in ValidationError([error]).messages]
        return [f"{label}: {message}" for message in told]


def loop_form(form: type[Any]) -> type[Any]:
    """Return this form with what the form of a loop record does."""
    if issubclass(form, LoopFormMixin):
        return form
    made: type[Any] = new_class(form.__name__, (LoopFormMixin, form))
    return made


class SuggestingInput(forms.TextInput):
    """A line of text with suggestions, any other text welcome: without a script."""

    def __init__(self, suggestions: Callable[[], Iterable[str]], attrs: Any = None) -> None:
        super().__init__(attrs)
        self.suggestions = suggestions

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        list_id = f"{(attrs or {}).get('id', name)}_list"
        field = super().render(name, value, {**(attrs or {}), "list": list_id}, renderer)
        options = format_html_join("", '<option value="{}">', ((s,) for s in self.suggestions()))
        return format_html('{}<datalist id="{}">{}</datalist>', field, list_id, options)


class PayloadField(forms.JSONField):
    """JSON as it is enqueued: strict in what it takes, shown by lines; nothing at all is {}."""

    def to_python(self, value: Any) -> Any:
        if value in self.empty_values:
            return {}
        try:
            found = super().to_python(value)
            return normalise(found, "payload", max_bytes=PAYLOAD_MAX_BYTES)
        except InvalidJob as error:
            raise ValidationError(str(error)) from error
        except (ValueError, RecursionError) as error:
            raise ValidationError(
                self.error_messages["invalid"], code="invalid", params={"value": ""}
            ) from error

    def bound_data(self, data: Any, initial: Any) -> Any:
        try:
            return super().bound_data(data, initial)
        except (ValueError, RecursionError):
            return forms.fields.InvalidJSONInput(data)

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return bool(super().has_changed(initial, data))
        except (ValueError, RecursionError):
            return True

    def prepare_value(self, value: Any) -> Any:
        if isinstance(value, forms.fields.InvalidJSONInput):
            return str(value)
        return json.dumps(value, indent=2, ensure_ascii=False)


def job_types() -> list[str]:
    """Return the types to offer: not those of loop records' and schedules' own jobs."""
    own = (PREFIX, "schedule:")
    return sorted(each for each in registry.types() if not each.startswith(own))


@cache
def zone_names() -> list[str]:
    """Return the names of time zones, read once: they are in hundreds of files."""
    return sorted(zoneinfo.available_timezones() - {"localtime", "Factory"})


def _line(**attrs: str) -> dict[str, str]:
    return {"class": "vTextField", "spellcheck": "false", "autocapitalize": "off", **attrs}


def fit(name: str, field: Any) -> Any:
    """Give a form field of a loop record its help and its widget."""
    if name in HELP:
        field.help_text = HELP[name]
    if name == "cron":
        field.widget = forms.TextInput(_line(maxlength="256", placeholder="0 2 * * mon-fri"))
    elif name == "every":
        field.widget = forms.TextInput(_line(placeholder="00:05:00"))
    elif name == "baseline":
        field.widget = forms.TimeInput(_line(placeholder="02:30"), format="%H:%M")
    elif name == "timezone":
        usual = timezone.get_default_timezone_name()
        field.widget = SuggestingInput(zone_names, _line(maxlength="64", placeholder=usual))
    elif name == "job_type":
        field.widget = SuggestingInput(job_types, _line(maxlength="256"))
    elif name == "next_run_at":
        # So that the form can tell whether it was edited: the stored one goes on meanwhile.
        field.show_hidden_initial = True
    return field


HELP = {
    "enabled": _("A record that is disabled keeps its rule and does not run."),
    "cron": _(
        "Five fields: minute, hour, day of month, month, day of week. 0 2 * * mon-fri is at 02:00"
        " from Monday to Friday, */15 * * * * every quarter of an hour. Or @hourly, @daily,"
        " @weekly, @monthly, @yearly."
    ),
    "every": _(
        "An interval in place of cron: hours, minutes and seconds, 00:05:00; or days before them,"
        " 1 00:00:00."
    ),
    "baseline": _(
        "With an interval of a day at most: the time of day that it starts from anew each day."
    ),
    "timezone": _(
        "What clock cron and the baseline go by, such as Europe/Vienna; blank: the project's own."
    ),
    "next_run_at": _(
        "Leave it to be worked out by the rule. With neither cron nor interval the record runs"
        " once, at this time."
    ),
    "owner_id": _(
        "Whose fair share its jobs use; where the project has many users, it does not run without."
    ),
    "job_type": _("What is enqueued at each time: the type of a job that the project declares."),
    "payload": _("The job's arguments, as a JSON object; what does not fit them is refused."),
}
