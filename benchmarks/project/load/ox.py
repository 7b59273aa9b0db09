"""The tasks of django-ox, which finds them by the path stored with each."""

from django.tasks import task

from . import work


@task
def nothing(number: int) -> None:
    pass


@task
def write(number: int) -> None:
    work.write(number)


@task
def stamp(number: int) -> None:
    work.stamp(number)
