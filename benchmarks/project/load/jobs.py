"""The jobs of django-durable-jobs, which finds them by this module's name."""

from django_durable_jobs import job

from . import work


@job("load.nothing")
def nothing(number: int) -> None:
    pass


@job("load.nothing_async")
async def nothing_async(number: int) -> None:
    pass


@job("load.write")
def write(number: int) -> None:
    work.write(number)


@job("load.stamp")
def stamp(number: int) -> None:
    work.stamp(number)
