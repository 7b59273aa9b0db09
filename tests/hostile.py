"""Settings of a project that reads from a replica which is never there in time."""

from typing import Any

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES

# Nobody listens there: whoever reads from it is told so.
DATABASES["replica"] = DATABASES["default"] | {"HOST": "127.0.0.1", "PORT": "1"}
DATABASE_ROUTERS = ["tests.hostile.ReadsFromReplica"]


class ReadsFromReplica:
    """Send every read to the replica, and every write to the default database."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "replica"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"
