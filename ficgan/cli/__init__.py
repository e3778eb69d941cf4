"""The commands: thin click layers over the rooms."""
