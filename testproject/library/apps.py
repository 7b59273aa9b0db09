from django.apps import AppConfig


class LibraryConfig(AppConfig):
    """An index of the Python standard library."""

    name = "library"
