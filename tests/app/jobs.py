"""Handlers of the test app; imported by django_durable_jobs when apps are ready."""
