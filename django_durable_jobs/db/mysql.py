"""What MySQL and MariaDB do in their own way."""

from __future__ import annotations

from .enqueueing import ValuesInsert
from .statements import Statements
from .updating import UpdateFromTable


class MySQLStatements(ValuesInsert, UpdateFromTable, Statements):
    """Lock rows by primary key only: an ORDER BY that no index serves locks every candidate."""

    by_turn = " FORCE INDEX (ddj_queue_turn)"
    by_wait = " FORCE INDEX (ddj_queue_wait)"
    by_active = " FORCE INDEX (ddj_execution_active)"
    lock = " FOR UPDATE"
    skip_locked = " FOR UPDATE SKIP LOCKED"
    text = "CHAR"
    share = " LOCK IN SHARE MODE"
    insert_once = " ON DUPLICATE KEY UPDATE namespace = namespace"
