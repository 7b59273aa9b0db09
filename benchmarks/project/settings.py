"""A project that has one job queue installed: the one that BENCH_SUBJECT names."""

import json
import os

SUBJECT = os.environ["BENCH_SUBJECT"]

SECRET_KEY = "benchmarks"
USE_TZ = True
DEBUG = False
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
# Connections that stay open: none of the subjects pays for opening one a job.
DATABASES = {"default": json.loads(os.environ["BENCH_DATABASE"]) | {"CONN_MAX_AGE": None}}

INSTALLED_APPS = [
    {
        "durable": "django_durable_jobs",
        "procrastinate": "procrastinate.contrib.django",
        "ox": "django_ox",
    }[SUBJECT],
    "load",
]
# Everything else is as each package has it by default.
TASKS = {"default": {"BACKEND": "django_ox.backend.OxBackend"}} if SUBJECT == "ox" else {}
