"""The command line. Exit codes: 0 ok, 1 wrong (usage too), 2 slower than required, 3 environment.

Each file of this package adds its commands to `app`; a new command is a new file."""

from __future__ import annotations

import importlib
import pkgutil
import sys

from rooftop.lab.cli.app import app
from rooftop.lab.exit_codes import ended

# they say themselves what runs in a process of its own: a case at a time; not a program that they start
APART = ("check", "judge", "learn", "profile")


def commands() -> None:
    """Import every file of commands."""
    for found in pkgutil.iter_modules(__path__, __name__ + "."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)


def main() -> None:
    """Entry point."""

    def task() -> None:
        if any(".py" in word or ".cu" in word for word in sys.argv[2:]) and sys.argv[1] not in APART:
            from rooftop.lab.cli import elsewhere

            elsewhere.elsewhere(sys.argv[1:])
        commands()
        app()

    ended(task)
