"""The commands: thin click layers over the rooms."""

HELP = {"help_option_names": ["-h", "--help"]}
"""Settings of every command and group: its help answers to -h as well."""
