"""What the commands that run something share: the event loop, Ctrl-C, the run folder's name, how it ended."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from agentprof.errors import ExitCode
from agentprof.runs.recording import RunCounts

_new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
with suppress(ImportError):  # no wheel for this interpreter: the same figures, from a somewhat slower loop
    import uvloop

    _new_loop = uvloop.new_event_loop

Result = TypeVar("Result")
_RUNS = Path("runs")
_MOST_LINES = 5
_PATIENCE_S = 10


def run_to_end(work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run on uvloop. Ctrl-C, SIGTERM and a closed terminal end it in order: sessions kept, processes gone.

    More of them change nothing while it is ending, which takes a few seconds at most; after ten, they end it at once.
    """

    async def until_signal() -> Result:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        asked_at: list[float] = []

        def end() -> None:
            if not asked_at and task is not None:
                task.cancel()
            elif asked_at and loop.time() - asked_at[0] > _PATIENCE_S:
                os._exit(ExitCode.INTERRUPTED)
            asked_at.append(loop.time())

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                loop.add_signal_handler(number, end)
        return await work()

    with asyncio.Runner(loop_factory=_new_loop) as runner:
        try:
            return runner.run(until_signal())
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


def new_folder(what: str, backends: Sequence[str]) -> Path:
    """runs/TIME-WHAT-BACKEND, made unique."""
    where = backends[0] if len(backends) == 1 else f"{len(backends)}-backends"
    name = f"{datetime.now().astimezone():%Y-%m-%dT%H%M%S}-{what}-{where}"
    path, number = _RUNS / name, 1
    while path.exists():
        number += 1
        path = _RUNS / f"{name}-{number}"
    return path


def conclude_counts(folder: Path, counts: RunCounts, *, interrupted: str) -> ExitCode:
    """Say where the run is, what was lost and whether it was interrupted; OK where neither happened."""
    click.echo(f"\nRun folder: {folder}  (agentprof explain {folder})")
    export = counts.export
    if export.exported is not None and export.exported < export.created:
        lost = export.created - export.exported
        complain(f"{lost} of {export.created} spans did not reach {export.endpoint}; the run folder has them all.")
    if counts.spans_written != counts.spans_created:
        complain(f"{counts.spans_created} spans made, {counts.spans_written} written: the run is incomplete.")
        return ExitCode.INCOMPLETE
    if counts.is_interrupted:
        complain(interrupted)
        return ExitCode.INTERRUPTED
    return ExitCode.OK


def complain_of_each(lines: Sequence[str]) -> None:
    """The first few lines, and how many more there are."""
    for line in lines[:_MOST_LINES]:
        complain(line)
    if len(lines) > _MOST_LINES:
        complain(f"… and {len(lines) - _MOST_LINES} more.")


def complain(line: str) -> None:
    """One line on stderr."""
    click.echo(f"agentprof: {line}", err=True)
