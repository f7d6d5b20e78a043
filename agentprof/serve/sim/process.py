"""A simulated server in a process of its own, which ends with the process that started it."""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import uvloop

from agentprof.errors import AgentprofError, InputError
from agentprof.serve.sim.app import SimOptions, serve_until
from agentprof.serve.sim.profile import Profile, load_profile
from agentprof.serve.sim.truth import RequestTruth, read_truth

_STOP_S = 5.0


@dataclass(frozen=True, slots=True)
class RunningSim:
    """A server that runs. `base_url` ends in /v1. Leaving its `with` block stops it.

    own_folder: the log's, where nobody asked for a log; it goes with the server.
    """

    base_url: str
    log: Path
    pid: int
    process: subprocess.Popen[bytes]
    own_folder: Path | None = None

    @property
    def root_url(self) -> str:
        """Where /health, /metrics and /tokenize are."""
        return self.base_url.removesuffix("/v1")

    def truth(self, requests: int, deadline_s: float = 5.0) -> list[RequestTruth]:
        """The log once it holds this many requests: a line is written just after the request's last byte.

        Raises TimeoutError when the deadline passes first.
        """
        end = time.monotonic() + deadline_s
        while len(found := read_truth(self.log)) < requests:
            if time.monotonic() > end:
                raise TimeoutError(f"{self.log} holds {len(found)} requests, not {requests}")
            time.sleep(0.01)
        return found

    def stop(self) -> None:
        """Stop the server and wait for its end; open requests are cut and logged."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        if self.own_folder is not None:
            shutil.rmtree(self.own_folder, ignore_errors=True)

    def __enter__(self) -> RunningSim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start_sim(
    profile: Profile | Path,
    *,
    log: Path | None = None,
    time_scale: float = 1.0,
    seed: int = 0,
    deadline_s: float = 30,
) -> RunningSim:
    """Start a server on a free port of 127.0.0.1 and wait until it listens.

    Without `log` the log goes into a temporary folder that is gone when the server is stopped. Raises InputError where
    the profile can't be served.
    """
    known = load_profile(profile) if isinstance(profile, Path) else profile
    own_folder = None
    if log is None:
        own_folder = Path(tempfile.mkdtemp(prefix="agentprof-sim-"))
        log = own_folder / "truth.jsonl"
    order = {
        "profile": known.model_dump(mode="json", exclude_unset=True),
        "log": str(log),
        "time_scale": time_scale,
        "seed": seed,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "agentprof.serve.sim"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    assert process.stdin is not None  # noqa: S101  both are pipes
    assert process.stdout is not None  # noqa: S101
    process.stdin.write(json.dumps(order).encode() + b"\n")
    ready, _, _ = select.select([process.stdout], [], [], deadline_s)
    line = process.stdout.readline() if ready else b""
    answer = json.loads(line) if line else {"error": f"the simulated server wasn't ready within {deadline_s:g} s"}
    running = RunningSim(answer.get("base_url", ""), log, process.pid, process, own_folder)
    if "error" in answer:
        running.stop()
        raise InputError(answer["error"])
    return running


def run_child() -> int:
    """The server process: reads its order from stdin, tells its URL on stdout, ends when stdin does."""
    order = json.loads(sys.stdin.buffer.readline())
    options = SimOptions(log=Path(order["log"]), seed=order["seed"], time_scale=order["time_scale"])
    try:
        uvloop.run(_serve(Profile.model_validate(order["profile"]), options))
    except AgentprofError as error:
        _tell({"error": str(error)})
        return int(error.exit_code)
    return 0


async def _serve(profile: Profile, options: SimOptions) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), stop.set)  # nothing more is sent: readable means closed
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    await serve_until(profile, options, lambda base_url: _tell({"base_url": base_url}), stop)
    loop.remove_reader(sys.stdin.fileno())


def _tell(answer: dict[str, str]) -> None:
    os.write(sys.stdout.fileno(), json.dumps(answer).encode() + b"\n")
