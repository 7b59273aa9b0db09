"""The subcommands of `manage.py durablejobs`: a command each, told of in its table."""
