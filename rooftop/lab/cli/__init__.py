"""The command line. Exit codes: 0 ok, 1 wrong, 2 slower than required, 3 environment.

Each file of this package adds its commands to `app`; a new command is a new file."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import typer

from rooftop.lab.cli.app import ENVIRONMENT, WRONG, app


def commands() -> None:
    """Import every file of commands."""
    for found in pkgutil.iter_modules(__path__, __name__ + "."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)


def main() -> None:
    """Entry point. Errors that a user can mend are one clear text, not a traceback."""
    from rooftop.lab.bench import NoGpuError
    from rooftop.lab.compile import CompileError, ToolchainError
    from rooftop.lab.expressions import ExpressionError
    from rooftop.lab.head import HeadError
    from rooftop.lab.records import RecordError
    from rooftop.lab.registry import RegistryError

    commands()
    try:
        app()
    except (NoGpuError, ToolchainError) as error:
        typer.echo(f"rooftop: {error}", err=True)
        sys.exit(ENVIRONMENT)
    except (RegistryError, HeadError, ExpressionError, CompileError, RecordError, FileNotFoundError, ValueError) as error:
        typer.echo(f"rooftop: {error.args[0] if isinstance(error, LookupError) and error.args else error}", err=True)
        sys.exit(WRONG)
    except OSError as error:  # a folder that cannot be written, a full disk
        where = " -> ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
        typer.echo(f"rooftop: {where}: {error.strerror}" if where else f"rooftop: {error}", err=True)
        sys.exit(ENVIRONMENT)
