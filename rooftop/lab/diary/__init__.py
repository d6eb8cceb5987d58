"""The diary: what commands found, day by day."""
