"""One page, with the settings' namespace: 200 where all is well, 503 where it is not."""

from django.urls import path

from .views import HealthView

app_name = "durable_jobs_health"
urlpatterns = [path("", HealthView.as_view(), name="health")]
