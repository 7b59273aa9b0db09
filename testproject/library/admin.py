from django.contrib import admin

from .models import SourceFile


@admin.register(SourceFile)
class SourceFileAdmin(admin.ModelAdmin):
    list_display = ["path", "package", "lines", "words", "definitions", "times_indexed"]
    search_fields = ["path"]
