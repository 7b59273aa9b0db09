"""Settings of the test project; the database comes from the environment (see databases.py)."""

import json
import os

from tests.databases import settings_from_environment

SECRET_KEY = "tests"
DEBUG = False
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "tests.urls"
STATIC_URL = "/static/"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_durable_jobs",
    "tests.app",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

DATABASES = {"default": settings_from_environment()}
DEFAULT_AUTO_FIELD = os.environ.get("DDJ_AUTO_FIELD", "django.db.models.BigAutoField")
MIGRATION_MODULES = {"testapp": None}

# Worker processes get their leases and caps from the test that starts them.
if durable_jobs := os.environ.get("DDJ_DURABLE_JOBS"):
    DURABLE_JOBS = json.loads(durable_jobs)

USE_TZ = os.environ.get("DDJ_USE_TZ", "1") != "0"
TIME_ZONE = "Europe/Vienna"
LANGUAGE_CODE = "en"

# Logging in is not what is tested here, so it may be quick.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
