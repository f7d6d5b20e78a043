"""What the tests of the tools share."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

from agentprof.agent.tools import ToolLimits, ToolResult

CallTool = Callable[..., ToolResult]

LIMITS = ToolLimits(time_ns=30_000_000_000, memory_mib=4096, output_bytes=16_384)
"""Limits that no test should meet by accident."""


def limits(seconds: float = 30, memory_mib: int = 4096, output_bytes: int = 16_384) -> ToolLimits:
    """Limits with the time in seconds."""
    return ToolLimits(int(seconds * 1e9), memory_mib, output_bytes)


def seconds(result: ToolResult) -> float:
    """How long a call took."""
    return (result.ended_ns - result.started_ns) / 1e9


async def until(condition: Callable[[], bool], within_s: float = 20) -> None:
    """Wait for what another process brings about."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - no event of this process tells
            await asyncio.sleep(0.01)


def running(argument: str) -> set[int]:
    """Living processes, of any session or namespace, one of whose arguments is exactly `argument`."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if os.fsencode(argument) in words:
                found.add(int(entry.name))
    return found


def gone(argument: str, within_s: float = 2.0) -> bool:
    """Whether no such process is left within some time: the kernel needs a moment to take a killed one away."""
    until = time.monotonic() + within_s
    while running(argument):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True
