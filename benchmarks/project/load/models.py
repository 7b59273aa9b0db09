from django.db import models


class Mark(models.Model):
    """What a job with one write leaves behind."""

    number = models.IntegerField()

    def __str__(self) -> str:
        return str(self.number)
