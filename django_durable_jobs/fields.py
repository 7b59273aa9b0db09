"""Field classes: identifiers byte for byte, JSON with null as a value, times that are UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django import forms
from django.conf import settings
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone
from django.utils.dateparse import parse_datetime

# Collations under which two strings are equal only if their bytes are, and sort by code point.
# MariaDB's and MySQL's defaults fold case, accents, trailing blanks and emoji (utf8mb4_bin still
# pads blanks); PostgreSQL's "C" makes the order of owners independent of the cluster's locale.
_EXACT_COLLATIONS = {
    "postgresql": "C",
    "mariadb": "utf8mb4_nopad_bin",
    "mysql": "utf8mb4_0900_bin",
}


def vendor(connection: BaseDatabaseWrapper) -> str:
    """Name the database behind ``connection``: postgresql, sqlite, mysql or mariadb."""
    if connection.vendor == "mysql" and getattr(connection, "mysql_is_mariadb", False):
        return "mariadb"
    return connection.vendor


# Django's fields are generic in their stubs only: what they would say is lost in a subclass.
class IdentifierField(models.CharField):  # type: ignore[type-arg]
    """Hold a name that is compared, sorted and unique byte for byte on every database."""

    def db_parameters(self, connection: BaseDatabaseWrapper) -> dict[str, Any]:
        parameters: dict[str, Any] = dict(super().db_parameters(connection))
        parameters["collation"] = _EXACT_COLLATIONS.get(vendor(connection))
        return parameters


def to_utc(value: datetime) -> datetime:
    """Return ``value`` in UTC; a naive one is taken to be UTC already."""
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def time_for_database(value: datetime, connection: BaseDatabaseWrapper) -> Any:
    """Return ``value`` (aware) as the parameter that stores or compares it as UTC."""
    if connection.vendor == "postgresql":
        return value
    naive = to_utc(value).replace(tzinfo=None)
    # SQLite compares text: one format with six digits, so that the order of text is that of time.
    return (
        naive.isoformat(sep=" ", timespec="microseconds")
        if connection.vendor == "sqlite"
        else naive
    )


def time_from_database(value: Any) -> datetime | None:
    """Return what a column of UTC times gave (text or datetime) as an aware datetime in UTC."""
    if value is None:
        return None
    parsed = parse_datetime(value) if isinstance(value, str) else value
    return None if parsed is None else to_utc(parsed)


class JSONValueField(models.JSONField):
    """Hold any JSON value; Python's None is JSON's null, which Django's own takes for SQL's."""

    def get_db_prep_save(self, value: Any, connection: BaseDatabaseWrapper) -> Any:
        if value is None:
            return connection.ops.adapt_json_value(None, self.encoder)
        return super().get_db_prep_save(value, connection)


class _InCurrentZone:
    """Have a form field show and read times in the current time zone although USE_TZ is False."""

    def prepare_value(self, value: Any) -> Any:
        return super().prepare_value(self._shown(value))  # type: ignore[misc]

    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool(super().has_changed(self._shown(initial), data))  # type: ignore[misc]

    def clean(self, value: Any) -> Any:
        value = super().clean(value)  # type: ignore[misc]
        naive = isinstance(value, datetime) and timezone.is_naive(value)
        return timezone.make_aware(value) if naive else value

    @staticmethod
    def _shown(value: Any) -> Any:
        aware = isinstance(value, datetime) and timezone.is_aware(value)
        return timezone.make_naive(value) if aware else value


class UTCDateTimeField(models.DateTimeField):  # type: ignore[type-arg]
    """Hold an instant, stored in UTC and read as an aware UTC datetime whatever USE_TZ says.

    Django's own field stores local times under ``USE_TZ=False``, in which a lease expires early
    in spring and never in autumn; its SQLite and MySQL adapters refuse aware values there.

    In queries, ``Trunc`` functions need ``output_field=DateTimeField()``, and the difference of two
    times is to be taken in Python: only PostgreSQL can subtract them as they are stored.
    """

    def get_internal_type(self) -> str:
        # A name that the backends have no converters for: they would apply time zones.
        return "UTCDateTimeField"

    def db_type(self, connection: BaseDatabaseWrapper) -> str:
        return str(connection.data_types["DateTimeField"])

    def get_db_prep_value(
        self, value: Any, connection: BaseDatabaseWrapper, prepared: bool = False
    ) -> Any:
        if not prepared:
            value = self.get_prep_value(value)
        return time_for_database(value, connection) if isinstance(value, datetime) else value

    def get_prep_value(self, value: Any) -> Any:
        value = super().get_prep_value(value)  # under USE_TZ: makes it aware, with a warning
        if isinstance(value, datetime) and timezone.is_naive(value):
            value = timezone.make_aware(value, timezone.get_default_timezone())
        return value

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
        # Under USE_TZ=False psycopg would give local times, ambiguous for an hour a year. What a
        # subquery gives is compared, not read: there it must stay an instant.
        if compiler.connection.vendor == "postgresql" and not compiler.query.subquery:
            return f"({sql} AT TIME ZONE 'UTC')", params
        return sql, params

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> datetime | None:
        return time_from_database(value)

    def formfield(self, **kwargs: Any) -> Any:
        if not settings.USE_TZ:
            chosen = kwargs.get("form_class", forms.DateTimeField)
            kwargs["form_class"] = type(chosen.__name__, (_InCurrentZone, chosen), {})
        return super().formfield(**kwargs)
