from typing import Any

from django.db import models

from django_durable_jobs.models import LoopRecord


class SourceFile(models.Model):
    """What is in one source file of the standard library."""

    path = models.CharField(max_length=255, unique=True)  # from the library's folder on
    package = models.CharField(max_length=100, db_index=True)
    lines = models.PositiveIntegerField()
    words = models.PositiveIntegerField()
    definitions = models.PositiveIntegerField()
    indexed_at = models.DateTimeField()
    times_indexed = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ["path"]

    def __str__(self) -> str:
        return self.path


class Package(LoopRecord):
    """A top-level package or module, looked through again and again for files that changed."""

    name = models.CharField(max_length=100, unique=True)
    found = models.PositiveIntegerField(default=0)  # files new or changed, so far

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    def get_owner_id(self) -> str:
        return self.name  # as of the jobs that index its files

    def trigger(self, prepared: Any) -> None:
        from .jobs import enqueue_files  # which imports this module
        from .source import paths

        new = sum(job.created for job in enqueue_files(paths(self.name)))
        if new:
            self.found += new
            self.save(update_fields=["found"])
