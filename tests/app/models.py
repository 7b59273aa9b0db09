from django.db import models


class Note(models.Model):
    """Something for handlers to write, so that tests can see that they ran."""

    text = models.TextField()

    def __str__(self) -> str:
        return self.text
