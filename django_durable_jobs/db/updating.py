"""Many rows changed by one statement, each to values of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from .session import Session

# How a kind of value is spelled: in PostgreSQL's arrays, and in MySQL's JSON_TABLE.
BIGINT, TIME, ID, TEXT = "bigint", "time", "id", "text"
_POSTGRESQL = {BIGINT: "bigint", TIME: "timestamptz", ID: "uuid", TEXT: "text"}
# A uuid is a column of its own type on MariaDB, and text elsewhere; both take its hex.
_MYSQL = {BIGINT: "BIGINT", TIME: "DATETIME(6)", ID: "CHAR(32)", TEXT: "LONGTEXT"}


class UpdateStatements(Session):
    """Change rows that are found by their ``id``."""

    def update_rows(
        self,
        table: str,
        kinds: Mapping[str, str],
        rows: Sequence[Sequence[Any]],
        changes: Mapping[str, str],
    ) -> int:
        """Change many rows at once; return how many there were.

        ``kinds`` names the values of each of ``rows`` and says of which kind they are, ``id``
        first; ``changes`` says in SQL what becomes of a column: of ``s``, the row that is there,
        and ``n``, the values given.
        """
        said = ", ".join(f"{name} = {sql}" for name, sql in changes.items())
        chosen = ", ".join(
            f"json_extract(value, '$[{n}]') AS {name}" for n, name in enumerate(kinds)
        )
        return self.count(
            f"UPDATE {table} AS s SET {said} FROM (SELECT {chosen} FROM json_each(%s)) AS n"
            " WHERE s.id = n.id",
            [self.as_json(rows)],
        )

    def as_json(self, rows: Sequence[Sequence[Any]]) -> str:
        return json.dumps([[self._plain(value) for value in row] for row in rows])

    def _plain(self, value: Any) -> Any:
        if isinstance(value, datetime):
            return str(self.time(value))
        return value.hex if isinstance(value, UUID) else value


class UpdateFromArrays(UpdateStatements):
    """PostgreSQL: from arrays, one a column."""

    def update_rows(
        self,
        table: str,
        kinds: Mapping[str, str],
        rows: Sequence[Sequence[Any]],
        changes: Mapping[str, str],
    ) -> int:
        said = ", ".join(f"{name} = {sql}" for name, sql in changes.items())
        arrays = ", ".join(f"%s::{_POSTGRESQL[kind]}[]" for kind in kinds.values())
        return self.count(
            f"UPDATE {table} AS s SET {said} FROM unnest({arrays}) AS n({', '.join(kinds)})"
            " WHERE s.id = n.id",
            [list(column) for column in zip(*rows, strict=True)],
        )


class UpdateFromTable(UpdateStatements):
    """MySQL and MariaDB: from a table made of JSON."""

    def update_rows(
        self,
        table: str,
        kinds: Mapping[str, str],
        rows: Sequence[Sequence[Any]],
        changes: Mapping[str, str],
    ) -> int:
        said = ", ".join(f"s.{name} = {sql}" for name, sql in changes.items())
        columns = ", ".join(
            f"{name} {_MYSQL[kind]} PATH '$[{n}]'" for n, (name, kind) in enumerate(kinds.items())
        )
        return self.count(
            f"UPDATE {table} AS s JOIN JSON_TABLE(%s, '$[*]' COLUMNS ({columns})) AS n"
            f" ON s.id = n.id SET {said}",
            [self.as_json(rows)],
        )
