from django.contrib import admin

from django_durable_jobs.admin import LoopRecordAdminMixin

from .models import Package, SourceFile


@admin.register(SourceFile)
class SourceFileAdmin(admin.ModelAdmin):
    list_display = ["path", "package", "lines", "words", "definitions", "times_indexed"]
    search_fields = ["path"]


@admin.register(Package)
class PackageAdmin(LoopRecordAdminMixin, admin.ModelAdmin):
    list_display = ["name", "found", "enabled", "shown_when", "shown_next_run", "shown_job"]
    search_fields = ["name"]
