"""The `agentprof` command: its subcommands, and the one place where errors become a line and an exit code."""

from __future__ import annotations

import importlib
import os
import select
import signal
import sys
from collections.abc import Sequence
from typing import Any, TextIO

import click

from agentprof import __version__
from agentprof.errors import AgentprofError, ExitCode

_COMMANDS = {
    "replay": "Replay scenarios against served models; say where the time went.",
    "bench": "Measure a backend with requests of fixed length and no agent.",
    "probe": "Ask a backend, in two minutes, what predicting on it needs.",
    "predict": "What a run would take on a probed backend, row by row.",
    "explain": "Explain a run again, from its folder alone.",
    "runs": "List what has been run.",
    "validate": "Check scenario and backend files.",
    "serve": "Serve a small real model, or a simulated one, on this machine.",
}
"""Command → what `agentprof --help` says of it. `agentprof.cli.COMMAND` holds it, imported when it is used."""


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"agentprof.cli.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without importing them, which takes seconds."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Whoever reads our output may stop reading, as in `agentprof explain … | head`."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:  # some other pipe's, where ours is read
            if not _is_unread(sys.stdout):
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return ExitCode.OK
        return result


def _is_unread(stream: TextIO) -> bool:
    """Whether a stream is a pipe that nobody reads any more."""
    poll = select.poll()
    poll.register(stream, 0)
    return any(state & select.POLLERR for _, state in poll.poll(0))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="agentprof")
def cli() -> None:
    """Where does an agent's time go when it runs on a served model?

    \b
    Example:
      agentprof replay scenarios/fix-failing-test.yaml --backend local
      agentprof explain runs/LATEST
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; every expected error is one line on stderr."""
    try:
        result = cli.main(args=arguments, prog_name="agentprof", standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("agentprof: interrupted", err=True)
        return ExitCode.INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return ExitCode.BAD_INPUT
    except click.ClickException as error:
        click.echo(f"agentprof: {_in_one_line(error)}", err=True)
        return ExitCode.BAD_INPUT
    except AgentprofError as error:
        for line in str(error).splitlines():  # a file's problems come all at once
            click.echo(f"agentprof: {line}", err=True)
        return error.exit_code
    return result if isinstance(result, int) else ExitCode.OK


def _in_one_line(error: click.ClickException) -> str:
    """click's message, and where the command's help is."""
    words = " ".join(error.format_message().split())
    context = error.ctx if isinstance(error, click.UsageError) else None
    return words if context is None else f"{words.rstrip('.')}. `{context.command_path} --help` says more."


def main() -> None:
    """Entry point of the console script. SIGTERM and a closed terminal end a command as Ctrl-C does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    code = run()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said and kept: a late Ctrl-C must not change the exit code
    sys.exit(code)
