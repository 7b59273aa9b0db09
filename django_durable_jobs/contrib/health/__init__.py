"""A page for probes: `path("health/jobs/", include("django_durable_jobs.contrib.health.urls"))`."""
