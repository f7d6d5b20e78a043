"""How many threads the embedded engine takes when nobody says."""

from __future__ import annotations

import os
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def default_threads() -> int:
    """Physical cores that this process may use, less one, at least 1.

    One core stays for the client that measures and the tools that it runs: llama.cpp's threads wait for each other
    after every operation, so one busy core slows all of them. Hyper-threads share a core, and count once.
    """
    return max(1, _physical_cores() - 1)


def _physical_cores() -> int:
    """Cores among the CPUs that this process may run on, bounded by a container's CPU quota."""
    cores = {_siblings(cpu) for cpu in os.sched_getaffinity(0)}
    quota = _quota_cores()
    return len(cores) if quota is None else min(len(cores), quota)


def _siblings(cpu: int) -> str:
    """The CPUs of the core that `cpu` belongs to; the CPU itself where the kernel doesn't tell."""
    file = _CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list"
    return file.read_text().strip() if file.is_file() else str(cpu)


def _quota_cores() -> int | None:
    """Whole CPUs that a cgroup v2 quota allows; None without a quota."""
    if not _QUOTA.is_file():
        return None
    quota, period = _QUOTA.read_text().split()
    return None if quota == "max" else int(quota) // int(period)
