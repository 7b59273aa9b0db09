"""The tasks of Procrastinate, which finds them by this module's name."""

from procrastinate.contrib.django import app

from . import work


@app.task
def nothing(number: int) -> None:
    pass


@app.task
async def nothing_async(number: int) -> None:
    pass


@app.task
def write(number: int) -> None:
    work.write(number)


@app.task
def stamp(number: int) -> None:
    work.stamp(number)
