import uuid
from datetime import datetime

from django.db import models

from django_durable_jobs.models import LoopQuerySet, LoopRecord


class Note(models.Model):
    """Something for handlers to write, so that tests can see that they ran."""

    text = models.TextField()

    def __str__(self) -> str:
        return self.text


class Reminder(LoopRecord):
    """A loop record whose hooks do what the row says, and write down that they were asked."""

    text = models.TextField(default="")
    # A hook that is named here refuses: "authorize,can_run,prepare,trigger,project".
    refuses = models.TextField(default="", blank=True)

    def __str__(self) -> str:
        return self.text

    def get_project_id(self) -> str:
        if "project" in self.refuses:
            raise ValueError("no project")
        return "reminders"

    def authorize(self, owner_id: str) -> bool:
        return "authorize" not in self.refuses

    def can_run(self) -> bool:
        return "can_run" not in self.refuses

    def prepare(self, occurrence_at: datetime) -> str:
        if "prepare" in self.refuses:
            raise ValueError("sold out")
        return f"{self.text} at {occurrence_at.isoformat()}"

    def trigger(self, prepared: str) -> None:
        Note.objects.create(text=prepared)
        if "trigger" in self.refuses:
            raise ValueError("no paper")


class LoudReminder(Reminder):
    """A reminder with a table of its own beside that of reminders."""

    volume = models.IntegerField(default=11)

    def get_owner_id(self) -> str:
        return super().get_owner_id().upper()

    def trigger(self, prepared: str) -> None:
        super().trigger(prepared.upper())


class Sheet(models.Model):
    """Something with a key of its own kind."""

    code = models.UUIDField(primary_key=True, default=uuid.uuid4)

    def __str__(self) -> str:
        return str(self.code)


class Poster(Sheet, Reminder):  # type: ignore[misc]
    """A reminder whose own key is not that of the reminder."""

    objects = LoopQuerySet.as_manager()  # type: ignore[misc] # the first base's would not sync


class QuietReminder(Reminder):
    """The same rows by another class."""

    class Meta:
        proxy = True


class Ticket(LoopRecord):
    """A loop record with a random key, whose hooks save it."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    prepared = models.IntegerField(default=0)
    triggered = models.IntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.triggered} of {self.prepared}"

    def prepare(self, occurrence_at: datetime) -> None:
        self.prepared += 1
        self.save()

    def trigger(self, prepared: None) -> None:
        self.triggered += 1
        self.save(update_fields=["triggered"])


class Page(LoopRecord):
    """A loop record whose key is text, and whose occurrences run as no others do."""

    occurrence_options = {"timeout": 90, "queue": "pages", "priority": 5}

    path = models.CharField(primary_key=True, max_length=300)

    def __str__(self) -> str:
        return self.path
