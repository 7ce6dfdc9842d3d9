"""The command `holdfast` (extra: `cli`).

To add a command, write `holdfast/cli/NAME.py` with a function `NAME` that typer can read (typed
parameters, a docstring for the help), and add its name to `COMMANDS`.
"""

from __future__ import annotations

import importlib
import sys

COMMANDS = ("bootstrap", "demo", "serve")


def main() -> None:
    """Run the command line of this process, and exit: 0 when done, 2 for a bad call.

    Also exits with 2, and says how to install them, when typer or rich are missing.
    """
    try:
        import rich  # noqa: F401
        import typer
    except ModuleNotFoundError as error:
        print(
            f"holdfast: the command line needs {error.name}; run `pip install 'holdfast[cli]'`",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    app = typer.Typer(
        name="holdfast",
        help="Distributed locks for Redis and Valkey: tools for development and operation.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_commands)
    for name in COMMANDS:
        module = importlib.import_module(f"holdfast.cli.{name}")
        app.command(name)(getattr(module, name))
    app(prog_name="holdfast")


def _commands() -> None:
    # A callback makes typer expect a command's name also while there is only one command.
    return
