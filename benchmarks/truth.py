"""Does the ledger say what truly happened?

    python benchmarks/truth.py [--quick] [--only WORD ...] [--skip-injection]

Each kind of simulated server logs when it sent what; commands tell their own start and end; a plain blocking socket
times connections. `agentprof replay` runs real sessions against each server, 1 and 16 at once, and every figure and
ledger row is held against those witnesses. For each kind of server, the median error of each row over 20 sessions must
be within 2 ms + 1 % of the truth (over 32 sessions, 5 ms + 2 %, with 16 at once). Then 250 ms are added to one part of
a session at a time: over 20 pairs, the median of that row of the ledger must grow by 250 ± 5 ms, and no other's by more
than 5 ms. Exit code 1 if anything is missed.

What is compared, and with what, is defined in docs/accuracy.md. Where there are two cores or more, the server has the
first one for itself, as a server elsewhere doesn't take the client's core either. For single sessions a loop at idle
priority keeps each core awake, as waking a virtual one takes the host up to 0.3 ms. And nothing is measured while other
machines on the same processor strain it, or other processes have a twentieth of its cores (calm.py), as long as the
patience lasts. `--untuned` does none of this. On a machine that does other work, put `chrt -r 10` before the command:
the kernel then runs the servers, the client and the tools before everything else.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from math import ceil, inf
from pathlib import Path
from statistics import median

from calm import Calm
from cores import Cores
from truth_cases import Case, cases, write_scenario
from truth_sessions import Pair, pairs_of, replay, time_connects, tool_stamps

from agentprof.analysis.frames import SessionFrame
from agentprof.analysis.ledger import LEDGER_ROWS
from agentprof.serve.sim import Profile, RunningSim, start_sim

_BOUNDS = {1: (2_000_000, 0.01), 16: (5_000_000, 0.02)}
_AT_REST_NS = 1_000_000  # a figure of less is compared too, but shares a line of the table
_INJECTED_NS = 250_000_000
_TOLERANCE_NS = 5_000_000
_PAIRS_AT_A_TIME = 4
_SHOWN = (
    "connect",
    "network",
    "queue",
    "prefill",
    "first_token_wait",
    "decode",
    "tail",
    "tool",
    "agent",
    "unattributed",
)
_SESSIONS = {False: {1: 20, 16: 32}, True: {1: 6, 16: 16}}
_QUICK = ("vLLM metrics", "buffered")
_CALM = 3.0
_PATIENCE_S = 30 * 60


@dataclass(frozen=True, slots=True)
class Place:
    """Where the certificate lies and everything else may be written, and on which cores things run."""

    folder: Path
    cert: Path
    key: Path
    cores: Cores

    def serve(self, profile: Profile) -> RunningSim:
        """Start a simulated server on its cores."""
        with self.cores.for_server():
            return start_sim(profile)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table: the errors of one figure under one kind of server."""

    concurrency: int
    case: str
    of: str
    row: str
    pairs: Sequence[Pair]

    @property
    def errors_ns(self) -> list[float]:
        """Distances from the truth, sorted; without end where no number was given."""
        return sorted(inf if pair.measured_ns is None else abs(pair.measured_ns - pair.true_ns) for pair in self.pairs)

    def bound_ns(self, pair: Pair) -> float:
        """How far the figure may be off."""
        fixed, share = _BOUNDS.get(self.concurrency, _BOUNDS[16])
        return fixed + share * pair.true_ns

    @property
    def ratios(self) -> list[float]:
        """Errors in units of their bounds, sorted; without end where no number was given."""
        return sorted(
            inf if pair.measured_ns is None else abs(pair.measured_ns - pair.true_ns) / self.bound_ns(pair)
            for pair in self.pairs
        )

    @property
    def verdict(self) -> str:
        """`ok`: at least half of the errors are within the bounds; else `MISSED`."""
        return "ok" if _percentile(self.ratios, 0.5) <= 1 else "MISSED"

    @property
    def true_ns(self) -> float:
        """The typical truth."""
        return median(pair.true_ns for pair in self.pairs)

    def cells(self) -> str:
        """n, truth, median and 95th percentile of the error, bound, verdict."""
        errors = self.errors_ns
        bound_ns = median(self.bound_ns(pair) for pair in self.pairs)
        numbers = (self.true_ns, median(errors), _percentile(errors, 0.95), bound_ns)
        shown = " | ".join(f"{ns / 1e6:.2f}" for ns in numbers)
        return f"{len(errors)} | {shown} | {self.verdict}"


def _percentile(ordered: Sequence[float], share: float) -> float:
    """The value that this share of them doesn't exceed."""
    return ordered[max(0, ceil(len(ordered) * share) - 1)]


def measure(case: Case, concurrency: int, sessions: int, place: Place) -> list[Line]:
    """Replay one kind of server and compare everything."""
    folder = place.folder / f"{case.name}-{concurrency}".replace(" ", "-").replace(",", "")
    shutil.rmtree(folder, ignore_errors=True)  # of a strained time
    scenario = write_scenario(folder, "truth", case)
    profile = Profile.model_validate(case.settings(place.cert, place.key))
    with place.serve(profile) as sim:
        connect_ns = time_connects(sim.base_url, place.cert)
        urls = {"sim": sim.base_url}
        frames = replay(folder, [scenario], urls, repeat=sessions, concurrency=concurrency, cafile=place.cert)
        log = sim.truth(0)
    if len(frames) < 0.9 * sessions:
        raise SystemExit(f"{case.name}: only {len(frames)} of {sessions} sessions completed")
    found: defaultdict[tuple[str, str], list[Pair]] = defaultdict(list)
    for pair in pairs_of(frames, log, tool_stamps(folder), connect_ns):
        found[pair.of, pair.row].append(pair)
    return [Line(concurrency, case.name, of, row, pairs) for (of, row), pairs in found.items()]


def print_lines(lines: Iterable[Line]) -> None:
    """One line for each figure that there was something to measure of, and one for all that should be about 0."""
    at_rest: list[Line] = []
    for line in lines:
        if line.true_ns < _AT_REST_NS and line.verdict == "ok":
            at_rest.append(line)
            continue
        print(f"| {line.concurrency} | {line.case} | {line.of} | {line.row} | {line.cells()} |")
    for of in ("call", "ledger"):
        quiet = [line for line in at_rest if line.of == of]
        if quiet:
            rows = ", ".join(line.row for line in quiet)
            together = Line(quiet[0].concurrency, quiet[0].case, of, rows, [p for line in quiet for p in line.pairs])
            print(f"| {together.concurrency} | {together.case} | {of} | {rows} | {together.cells()} |")
    sys.stdout.flush()


def print_servers(lines: Sequence[Line], strains: Mapping[tuple[int, str], float]) -> None:
    """For each kind of server, how many figures were held against the truth, and which came closest to its bound.

    strains: how strained the machine was around each.
    """
    print("\n| at once | server | figures | ok | closest to its bound | median error ms | bound ms | strain |")
    print("|---|---|---|---|---|---|---|---|")
    by_server: defaultdict[tuple[int, str], list[Line]] = defaultdict(list)
    for line in lines:
        by_server[line.concurrency, line.case].append(line)
    for (concurrency, case), own in by_server.items():
        worst = max(own, key=lambda line: _percentile(line.ratios, 0.5))
        ok = sum(line.verdict == "ok" for line in own)
        bound_ns = median(worst.bound_ns(pair) for pair in worst.pairs)
        numbers = f"{median(worst.errors_ns) / 1e6:.2f} | {bound_ns / 1e6:.2f}"
        numbers += f" | {strains[concurrency, case]:.1f}"
        print(f"| {concurrency} | {case} | {len(own)} | {ok} | {worst.of}: {worst.row} | {numbers} |")


def summarize(lines: Sequence[Line]) -> bool:
    """Print every figure over all kinds of servers; whether each is within its bounds, for each kind too."""
    print("\n| at once | of | row | n | truth ms | median error | p95 error | bound | |")
    print("|---|---|---|---|---|---|---|---|---|")
    pooled: defaultdict[tuple[int, str, str], list[Pair]] = defaultdict(list)
    for line in lines:
        pooled[line.concurrency, line.of, line.row] += line.pairs
    whole = [Line(concurrency, "all", of, row, pairs) for (concurrency, of, row), pairs in pooled.items()]
    for line in sorted(whole, key=lambda line: (line.concurrency, line.of)):
        print(f"| {line.concurrency} | {line.of} | {line.row} | {line.cells()} |")
    print()
    for line in (*lines, *whole):
        if line.verdict == "MISSED":
            print(f"MISSED: {line.concurrency} at once, {line.case}: {line.of} {line.row}")
    return all(line.verdict == "ok" for line in (*lines, *whole))


def inject(repeat: int, place: Place, calm: Calm) -> bool:
    """The injection test, a few pairs at a time; prints its table and returns whether all of it holds.

    Servers and scenarios take turns, session by session, so that each injected session has a plain one beside it. A
    session has two calls, each on a connection of its own, and one tool: calls get 125 ms each, the tool 250 ms.
    """
    steady = {"prefill": {"base": "60ms", "per_token": "0.02ms"}, "stream": {"close": True}}
    case = Case("injection", steady, has_tls=True)
    half = f"{_INJECTED_NS / 2e6:g}ms"
    plain = write_scenario(place.folder / "injection", "plain", case, is_short=True)
    slow = write_scenario(place.folder / "injection", "slow-tool", case, is_short=True, extra_tool_ns=_INJECTED_NS)
    with ExitStack() as stack:
        urls: dict[str, str] = {}
        for name in ("plain", "connect", "first_token", "decode", "tail"):
            settings = case.settings(place.cert, place.key, half if name == "connect" else "0.01ms")
            injected = {name: half} if name in ("first_token", "decode", "tail") else {}
            profile = Profile.model_validate(settings | {"inject": injected})
            urls[name] = stack.enter_context(place.serve(profile)).base_url
        moved: defaultdict[str, list[dict[str, int]]] = defaultdict(list)
        for _ in range(ceil(repeat / _PAIRS_AT_A_TIME)):
            frames, _ = calm.around(partial(_play, place, [plain], urls))
            for name in list(urls)[1:]:
                moved[name] += _effects(frames, ("plain", name))
            frames, _ = calm.around(partial(_play, place, [plain, slow], {"plain": urls["plain"]}))
            moved["tool"] += _effects(frames, ("slow-tool", "plain"))
    return _print_effects(moved)


def _play(place: Place, scenarios: Sequence[Path], urls: Mapping[str, str]) -> list[SessionFrame]:
    """A few sessions of each scenario on each server, taking turns."""
    folder = place.folder / "injected"
    shutil.rmtree(folder, ignore_errors=True)
    return replay(folder, scenarios, urls, repeat=_PAIRS_AT_A_TIME, concurrency=1, cafile=place.cert)


def _effects(frames: Sequence[SessionFrame], injected: tuple[str, str]) -> list[dict[str, int]]:
    """By how much each row of an injected session differs from that of the plain one beside it."""
    by_kind = {(frame.scenario, frame.backend, frame.repetition): frame.ledger.rows for frame in frames}
    found = []
    for (scenario, backend, repetition), rows in by_kind.items():
        beside = by_kind.get(("plain", "plain", repetition))
        if (scenario, backend) == injected and beside is not None:
            found.append({row: (rows[row] or 0) - (beside[row] or 0) for row in LEDGER_ROWS})
    return found


def _print_effects(moved: Mapping[str, Sequence[Mapping[str, int]]]) -> bool:
    print(f"\n| {_INJECTED_NS // 10**6} ms added to | pairs | " + " | ".join(_SHOWN) + " | |")
    print("|---" * (len(_SHOWN) + 3) + "|")
    is_all_ok = True
    for name, pairs in moved.items():
        own = "first_token_wait" if name == "first_token" else name
        effects = {row: median(pair[row] for pair in pairs) for row in LEDGER_ROWS}
        is_ok = all(
            abs(effect - (_INJECTED_NS if row == own else 0)) <= _TOLERANCE_NS for row, effect in effects.items()
        )
        is_all_ok = is_all_ok and is_ok
        shown = " | ".join(f"{effects[row] / 1e6:+.2f}" for row in _SHOWN)
        print(f"| {own} | {len(pairs)} | {shown} | {'ok' if is_ok else 'MISSED'} |")
    return is_all_ok


def make_place(folder: Path, cores: Cores) -> Place:
    """A certificate for 127.0.0.1 in a folder, made with openssl's command."""
    place = Place(folder, folder / "cert.pem", folder / "key.pem", cores)
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    options = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(place.key), "-out", str(place.cert)]
    subprocess.run([*command, *options], check=True, capture_output=True)
    return place


def main() -> None:
    """Run everything, print the tables, exit 1 where a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="kinds of servers whose name holds a word"
    )
    parser.add_argument("--concurrency", type=int, nargs="+", choices=sorted(_BOUNDS), default=sorted(_BOUNDS))
    parser.add_argument("--quick", action="store_true", help="two kinds of servers, few sessions, in under a minute")
    parser.add_argument("--skip-injection", action="store_true", help="only the first part")
    parser.add_argument("--only-injection", action="store_true", help="only the second part")
    parser.add_argument("--untuned", action="store_true", help="cores are shared and may sleep; no waiting for calm")
    options = parser.parse_args()
    started_s = time.monotonic()
    print(f"load average before: {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores\n")
    cores = Cores.as_they_are() if options.untuned else Cores.divide()
    with tempfile.TemporaryDirectory(prefix="agentprof-truth-") as folder:
        place = make_place(Path(folder), cores)
        calm = Calm(_CALM, 0 if options.untuned else _PATIENCE_S)
        is_ok = True
        if not options.only_injection:
            is_ok = compare(place, calm, options.concurrency, options.only, is_quick=options.quick)
        if not options.skip_injection:
            with cores.kept_awake():
                is_ok = inject(4 if options.quick else 20, place, calm) and is_ok
    others = f"other processes had up to {calm.busiest:.0%} of the cores" + (
        "" if options.untuned else " in single sessions"
    )
    print(f"\n{time.monotonic() - started_s:.0f} s; {others}; load average after: {os.getloadavg()[0]:.2f}")
    sys.exit(0 if is_ok else 1)


def compare(place: Place, calm: Calm, levels: Sequence[int], words: Sequence[str], *, is_quick: bool) -> bool:
    """The first part: every kind of server at each concurrency; returns whether all bounds hold."""
    print("| at once | server | of | row | n | truth ms | median error | p95 error | bound | |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    lines: list[Line] = []
    strains: dict[tuple[int, str], float] = {}
    impatient = Calm(calm.limit, 0)  # with several sessions the bounds are wider than any strain was
    for concurrency in levels:
        with place.cores.kept_awake() if concurrency == 1 else nullcontext():
            for case in cases(concurrency):
                if any(word in case.name for word in words) or (not words and (not is_quick or case.name in _QUICK)):
                    work = partial(measure, case, concurrency, _SESSIONS[is_quick][concurrency], place)
                    watch = calm if concurrency == 1 else impatient
                    measured, strains[concurrency, case.name] = watch.around(work)
                    print_lines(measured)
                    lines += measured
    print_servers(lines, strains)
    return summarize(lines)


if __name__ == "__main__":
    main()
