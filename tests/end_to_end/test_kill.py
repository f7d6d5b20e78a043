"""kill -9 at ten moments of a run of ten sessions: what was finished loads, the rest is named, nothing is left."""

from __future__ import annotations

import json
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from command import start
from living import are_gone, of_workspaces_in
from small_scenarios import write_scenario
from tiny_server import TinyServer, tiny_server

from agentprof.cli.main import run

SESSIONS = 10
_RANDOM = random.Random(20261130)


@dataclass(frozen=True)
class Moment:
    """When a run is killed: so long after so many of its sessions began to work."""

    begun: int
    seconds: float
    concurrency: int


# One in each tenth of the run, so that they are spread over it whatever the machine's speed.
MOMENTS = [Moment(begun, _RANDOM.uniform(0, 0.3), 2 - begun % 2) for begun in range(SESSIONS)]


def killed_run(folder: Path, tiny: TinyServer, moment: Moment) -> int:
    """Start a run in a folder of its own and kill it at the moment; asserts that nothing is left of it.

    Returns how it ended: a machine that wakes the test up too late may have let the last runs come to their end.
    """
    temporary, places = folder / "tmp", folder / "places"
    temporary.mkdir(parents=True)
    # Of each call, one process flees into a session of its own, and one stays.
    command = f"pwd >> {places}; (setsid sleep 300 > /dev/null 2>&1 &); sleep 0.25"
    steps = [{"calls": [{"bash": {"command": command}}], "output_tokens": 2}, {"answer": "Done.", "output_tokens": 2}]
    write_scenario(folder, turns=[{"user": "Go.", "steps": steps}], checks=["test -f notes.txt"])
    server = ["--base-url", tiny.base_url, "--model", "tiny", "--warmup", "0", "--out", "out", "--capture-content"]
    many = ["--repeat", str(SESSIONS), "--concurrency", str(moment.concurrency)]
    running = start("replay", "tiny.yaml", *server, *many, cwd=folder, TMPDIR=str(temporary))
    if moment.begun:
        running.wait_for(lambda: places.exists() and len(places.read_text().split()) >= moment.begun)
    else:
        running.wait_for(lambda: (folder / "out" / "run.json").exists())
    time.sleep(moment.seconds)
    ended = running.signal(signal.SIGKILL)
    assert are_gone(running.survivors, 60)
    assert are_gone(lambda: of_workspaces_in(temporary), 20)
    assert list(temporary.iterdir()) == []
    return ended.code


def test_finished_sessions_load_and_the_others_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [tmp_path / str(number) for number in range(len(MOMENTS))]
    with tiny_server(token_s=0.005) as tiny, ThreadPoolExecutor(2) as pool:
        codes = list(pool.map(killed_run, folders, [tiny] * len(MOMENTS), MOMENTS))
    assert codes.count(-signal.SIGKILL) >= SESSIONS - 2, codes
    finished = []
    for folder, moment in zip(folders, MOMENTS, strict=True):
        code = run(["explain", str(folder / "out"), "--json"])
        told = capsys.readouterr()
        sessions = json.loads(told.out)["sessions"]
        assert moment.begun - moment.concurrency <= len(sessions) <= SESSIONS
        for session in sessions:
            assert (session["outcome"], session["checks_passed"]) == ("completed", True)
            assert sum(ns or 0 for ns in session["ledger"].values()) == session["wall_ns"]
        there = {session["repetition"] for session in sessions}
        missing = [number for number in range(1, SESSIONS + 1) if number not in there]
        names = ", ".join(f"repetition {number}" for number in missing)
        words = f"{folder / 'out'}: {len(missing)} of {SESSIONS} sessions are missing: tiny on default: {names}."
        assert (words in told.err) == bool(missing)
        assert code == 4 or (code == 0 and not missing)
        assert "Traceback" not in told.err
        assert run(["explain", str(folder / "out")]) == code
        assert len(capsys.readouterr().err.splitlines()) == len(told.err.splitlines()) <= 2
        finished.append(len(sessions))
    assert len(set(finished)) >= 4  # the moments were different ones
