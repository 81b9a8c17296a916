"""How the command line reports an error: one line with the cause and what to write, the traceback with `--verbose`."""

import sys
import traceback
from typing import Any

import typer
from typer.core import TyperGroup

EXIT_FAILURE, EXIT_INTERRUPTED = 1, 130


class OneLineErrors(TyperGroup):
    """A group of commands that prints each error as one line.

    Attributes:
        verbose: Whether to print the traceback too.
    """

    verbose = False

    def main(self, *args: Any, **options: Any) -> Any:
        """Run a command. Exit with 0, the command's own code, 1 after an error, 2 after wrong use, 130 at Ctrl-C."""
        try:
            result = super().main(*args, **options | {"standalone_mode": False})
        except (typer.Abort, KeyboardInterrupt):
            sys.exit(EXIT_INTERRUPTED)
        except Exception as error:
            if self.verbose:
                traceback.print_exception(error)
            typer.echo(_line(error), err=True)
            sys.exit(getattr(error, "exit_code", EXIT_FAILURE))
        sys.exit(result if isinstance(result, int) else 0)


def _line(error: Exception) -> str:
    # Not at the top: a command that succeeds should not wait for these imports.
    from rollfleet.errors import RollfleetError
    from rollfleet_api.address import EnvironmentIncomplete
    from rollfleet_api.validation import JobErrors

    if isinstance(error, RollfleetError | JobErrors | EnvironmentIncomplete):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if format_message := getattr(error, "format_message", None):  # wrong use, found by typer
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "rollfleet"
        problem = format_message().rstrip(".").replace(": Value error, ", ": ")  # the prefix of pydantic
        return f"{command}: {problem}; see `{command} --help`"
    cause = (str(error).splitlines() or [""])[0]
    return (
        f"{type(error).__name__}: {cause}; this is a defect of Rollfleet: "
        "run the command as `rollfleet --verbose ...`, and report the traceback"
    )
