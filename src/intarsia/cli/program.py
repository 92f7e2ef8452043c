# SPDX-License-Identifier: Apache-2.0
"""The program: its commands, and what becomes of messages and errors."""

from __future__ import annotations

import inspect
import logging
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Annotated, Any

import typer

from intarsia.cli import costs as costs_commands
from intarsia.cli import keys as keys_commands
from intarsia.cli import plan as plan_commands
from intarsia.cli import target as target_commands
from intarsia.cli.attributes import expand_attributes
from intarsia.cli.bench import bench_command
from intarsia.cli.check import check_command, doctor_command
from intarsia.cli.compile import compile_command
from intarsia.cli.demo import demo_command
from intarsia.cli.explain import explain_command
from intarsia.cli.output import BROKEN_PIPE, error_of_output, note, show_json, write
from intarsia.cli.quantize import quantize_command
from intarsia.cli.run import run_command
from intarsia.cli.serve import serve_command
from intarsia.cli.tune import tune_command, tune_kernels_command
from intarsia.cli.verify import reduce_command, verify_command
from intarsia.errors import IntarsiaError, SettingError
from intarsia.settings import Settings, is_plain

UsageError: Any = typer.BadParameter.__base__  # of typer's own click or of the installed one

app = typer.Typer(
    name="intarsia",
    help="Place every piece of an ONNX model on the backend that is best for it.",
    epilog="Exit codes: 0 done, 1 the answer is no, 2 bad input, 3 a backend failed, 4 our bug.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("compile")(compile_command)
app.command("tune")(tune_command)
app.command("tune-kernels")(tune_kernels_command)
app.command("quantize")(quantize_command)
app.command("run")(run_command)
app.command("serve")(serve_command)
app.command("explain")(explain_command)
app.command("check")(check_command)
app.command("verify")(verify_command)
app.command("reduce")(reduce_command)
app.add_typer(target_commands.app, name="target")
app.command("bench")(bench_command)
app.command("demo")(demo_command)
app.command("doctor")(doctor_command)
app.add_typer(costs_commands.cache_app, name="cache")
app.add_typer(costs_commands.app, name="costs")
app.add_typer(plan_commands.app, name="plan")
app.add_typer(keys_commands.app, name="keys")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        write(f"intarsia {version('intarsia')}\n")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Place every piece of an ONNX model on the backend that is best for it."""


@cache
def _commands() -> Any:
    """Return what parses command lines: reading all signatures takes longer than most commands."""
    return typer.main.get_command(app)


def _unfold_help(of: typer.Typer) -> None:
    """Make one line of each paragraph of the commands' help: typer keeps a docstring's breaks."""
    for command in of.registered_commands:
        text = command.help or inspect.getdoc(command.callback) or ""
        command.help = "\n\n".join(paragraph.replace("\n", " ") for paragraph in text.split("\n\n"))
    for group in of.registered_groups:
        if group.typer_instance is not None:
            _unfold_help(group.typer_instance)


_unfold_help(app)


def run_program(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; errors become messages.

    Raises:
        KeyboardInterrupt: The user pressed Ctrl-C.
    """
    is_debug = False
    try:
        settings = Settings.from_environment()
        is_debug = settings.debug
        _keep_help_plain()
        with _messages(settings.log_level):
            given = expand_attributes(arguments)
            code = _commands()(given, prog_name="intarsia", standalone_mode=False)
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        return BROKEN_PIPE  # rich printed help that nobody reads to its end
    except Exception as error:
        return _report(error_of_output(error), arguments, is_debug=is_debug)
    return code if isinstance(code, int) else 0


def _keep_help_plain() -> None:
    """Have typer's help obey NO_COLOR whole: rich leaves out colours alone, and keeps bold."""
    if is_plain() and sys.stdout.isatty():
        from typer import rich_utils

        rich_utils.COLOR_SYSTEM = None


def _report(error: Exception, arguments: Sequence[str], *, is_debug: bool) -> int:
    hint, place = getattr(error, "hint", None), getattr(error, "place", None)
    if isinstance(error, IntarsiaError):
        code, kind, message = error.exit_code, type(error).__name__, error.message
        note(f"error: {message}")
        if place is not None:
            note(str(place))
    elif isinstance(error, typer.Abort):
        code, kind, message = 1, "Abort", "aborted"
        note(message)
    elif isinstance(error, UsageError):
        code, kind, message = int(error.exit_code), "UsageError", str(error.format_message())
        if not message.strip():  # a bare command: its help is printed already
            return code
        hint = hint or _quotes_hint(error, arguments) or f"see {_command_path(error)} --help"
        note(f"error: {message}")
    else:
        code, kind = 4, "InternalError"
        message = f"{type(error).__name__}: {error}"
        hint = "set INTARSIA_DEBUG=1 for the traceback, and please report it"
        note(f"internal error: {message}")
        if is_debug:
            note("".join(traceback.format_exception(error)).rstrip())
    if hint:
        note(f"hint: {hint}")
    if "--json" in arguments:
        facts = {name: getattr(error, name, None) for name in ("node", "target")}
        facts |= {"place": place} if place is not None else {}
        _show_error({"type": kind, "message": message, **facts, "hint": hint})
    return code


def _show_error(facts: dict[str, Any]) -> None:
    """Print an error as JSON; where nothing takes it, the exit code stays that of the error."""
    try:
        show_json({"error": facts})
    except typer.Exit:  # nobody reads it
        pass
    except SettingError as error:
        note(f"error: {error.message}")


def _quotes_hint(error: Any, arguments: Sequence[str]) -> str:
    """Return what to do where an attribute of a target came as an option: the shell split it."""
    option = getattr(error, "option_name", None)
    if not option:
        return ""
    attribute = re.compile(rf"{re.escape(option)}[\w-]*=")
    at = next((at for at, text in enumerate(arguments) if attribute.match(text)), None)
    if at is None or arguments[at].startswith("--") or not arguments[at].startswith("-"):
        return ""
    target = _target_text(arguments[:at]) or "llvm"
    return f'quote a target that has attributes: -t "{target} {arguments[at]}"'


def _target_text(arguments: Sequence[str]) -> str:
    """Return the last target that is written; nothing if there is none."""
    target = ""
    for option, value in zip(arguments, (*arguments[1:], ""), strict=True):
        if option in ("-t", "--target"):
            target = value
        elif option.startswith("--target="):
            target = option.removeprefix("--target=")
    return target


def _command_path(error: Any) -> str:
    context = getattr(error, "ctx", None)
    return str(context.command_path) if context is not None else "intarsia"


class _StderrHandler(logging.Handler):
    """Writes `warning: ...` to what is standard error at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        note(f"{record.levelname.lower()}: {record.getMessage()}")


@contextmanager
def _messages(level: str) -> Iterator[None]:
    """Send log records and Python warnings to standard error, each as one line."""
    logger = logging.getLogger("intarsia")
    handler, before = _StderrHandler(), (logger.level, logger.propagate)
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning  # type: ignore[assignment]  # the rest is not shown
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(before[0])
            logger.propagate = before[1]


def _show_warning(message: Warning | str, *_: Any) -> None:
    note(f"warning: {message}")
