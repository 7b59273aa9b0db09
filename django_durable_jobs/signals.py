"""Hooks by which lower rooms set something off in higher ones."""

from __future__ import annotations

from collections.abc import Callable

# Workers of this process, to be woken (with a namespace) when a job was committed for them.
wake_listeners: list[Callable[[str], None]] = []
