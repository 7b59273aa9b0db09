from django.db import models


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
