"""Real replays against simulated servers, and what each figure of theirs truly was.

Truth comes from three witnesses that agentprof does not share: the server's log, the tools' own stamps with the
kernel's count of their age, and a plain blocking socket that connects to the same server.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import orjson
import yaml
from truth_cases import THINK_NS

from agentprof import semconv
from agentprof.analysis.calls import CallFrame
from agentprof.analysis.frames import SessionFrame, session_frames
from agentprof.records.spans import Span
from agentprof.runs.store import read_run
from agentprof.serve.sim import RequestTruth

_MOST_BUFFERED = 0.9
_BUFFERED_TOKENS = 16
_COMMAND = f"{semconv.EXECUTE_TOOL} bash"
_LOOP_NAMES = (semconv.PREPARE, semconv.PARSE, semconv.DISPATCH)
_STAMPS = re.compile(r"stamps (\d+)[.,](\d{6}) (\d+)[.,](\d{6}) (\d+)")


@dataclass(frozen=True, slots=True)
class Pair:
    """One figure as agentprof measured it and as it was. `of` is `call` or `ledger`. measured_ns None: no number."""

    of: str
    row: str
    measured_ns: int | None
    true_ns: int


def replay(
    folder: Path, scenarios: Sequence[Path], urls: Mapping[str, str], *, repeat: int, concurrency: int, cafile: Path
) -> list[SessionFrame]:
    """`agentprof replay` in a process of its own; the measured sessions that completed. Failed ones are left out."""
    backends = {name: {"base_url": url, "model": "simulated"} for name, url in urls.items()}
    folder.mkdir(parents=True, exist_ok=True)
    file, out = folder / "backends.yaml", folder / "run"
    file.write_text(yaml.safe_dump({"backends": backends}))
    command = [sys.executable, "-m", "agentprof", "replay", *map(str, scenarios), "--backends", str(file)]
    command += [word for name in urls for word in ("-b", name)]
    command += ["--repeat", str(repeat), "--concurrency", str(concurrency), "--out", str(out), "--capture-content"]
    environment = {**os.environ, "SSL_CERT_FILE": str(cafile)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if not (out / "run.json").exists():
        raise SystemExit(f"replay failed with exit code {ended.returncode}:\n{ended.stderr[-2000:]}")
    frames = session_frames(read_run(out).spans)
    return [frame for frame in frames if not frame.is_warmup and frame.outcome == "completed"]


def tool_stamps(folder: Path) -> dict[int, tuple[int, int]]:
    """When each command's process began and when it had done its work, in ns of the wall clock, by span id."""
    stamps: dict[int, tuple[int, int]] = {}
    for line in (folder / "run" / "content.jsonl").read_bytes().splitlines():
        entry = orjson.loads(line)
        told = _STAMPS.match(str(entry["content"]))
        if told is not None:
            start, end = (int(whole + micros) * 1000 for whole, micros in (told.group(1, 2), told.group(3, 4)))
            stamps[int(entry["span"], 16)] = (start - int(told[5]), end)
    return stamps


def time_connects(base_url: str, cafile: Path, count: int = 20) -> int:
    """Median ns of connecting to a server with a plain blocking socket, TLS handshake included.

    Before each one a process is started and ends, as before an agent's call: caches and cores are as cold.
    """
    parts = urlsplit(base_url)
    context = ssl.create_default_context(cafile=str(cafile)) if parts.scheme == "https" else None
    took = []
    for _ in range(count):
        time.sleep(0.1)
        subprocess.run([sys.executable, "-c", "import json"], check=True)
        started = time.perf_counter_ns()
        with socket.create_connection((parts.hostname or "", parts.port or 0)) as plain:
            if context is None:
                took.append(time.perf_counter_ns() - started)
                continue
            with context.wrap_socket(plain, server_hostname=parts.hostname):
                took.append(time.perf_counter_ns() - started)
    return round(median(took))


def requests_by_call(log: Sequence[RequestTruth]) -> dict[tuple[int, int], list[RequestTruth]]:
    """The attempts of each call in order, by trace and span id."""
    calls: defaultdict[tuple[int, int], list[RequestTruth]] = defaultdict(list)
    for request in sorted(log, key=lambda request: request.received_ns):
        if request.traceparent:
            _, trace, span, _ = request.traceparent.split("-")
            calls[int(trace, 16), int(span, 16)].append(request)
    return dict(calls)


def first_requests(log: Sequence[RequestTruth]) -> set[int]:
    """The numbers of the requests that were the first of their connection."""
    found: dict[int, RequestTruth] = {}
    for request in sorted(log, key=lambda request: request.number):
        found.setdefault(request.client_port, request)
    return {request.number for request in found.values()}


@dataclass(frozen=True, slots=True)
class TrueCall:
    """One call as the server saw it. connect_ns: of a plain client where the connection was new, else 0."""

    attempts: Sequence[RequestTruth]
    connect_ns: int
    has_gateway: bool

    @property
    def last(self) -> RequestTruth:
        """The attempt that succeeded."""
        return self.attempts[-1]

    @property
    def upload_ns(self) -> int:
        """From the headers to the last byte of the request, where they came apart."""
        return max(0, self.last.arrived_ns - self.last.received_ns)

    @property
    def first_token_ns(self) -> int:
        """When the first token was written."""
        return self.last.token_chunks[0].at_ns

    @property
    def last_token_ns(self) -> int:
        """When the last token was written."""
        return self.last.token_chunks[-1].at_ns

    @property
    def end_ns(self) -> int:
        """When `[DONE]` was written."""
        return next((chunk.at_ns for chunk in reversed(self.last.chunks) if chunk.kind == "d"), self.last.finish_ns)

    @property
    def is_buffered(self) -> bool:
        """Whether the first write of tokens held nearly all of them."""
        tokens = sum(chunk.tokens for chunk in self.last.token_chunks)
        at_once = sum(chunk.tokens for chunk in self.last.token_chunks if chunk.at_ns == self.first_token_ns)
        return tokens > _BUFFERED_TOKENS and at_once >= _MOST_BUFFERED * tokens

    @property
    def retry_ns(self) -> int:
        """From the first attempt to the one that succeeded."""
        again = len(self.attempts) > 1
        return self.last.arrived_ns - self.attempts[0].arrived_ns - self.connect_ns if again else 0

    def reported(self, call: CallFrame) -> dict[str, int]:
        """The parts of the wait that gateway and server report, as they truly were."""
        last = self.last
        parts = {"gateway": last.gateway_ns} if self.has_gateway else {}
        if call.server.source in ("vllm metrics", "llama.cpp timings") or call.server.prefill_ns is not None:
            parts["prefill"] = last.prefill_end_ns - last.queue_end_ns
        if call.server.queue_ns is not None:
            parts["queue"] = last.queue_end_ns - last.queue_start_ns
        return parts


def call_pairs(call: CallFrame, true: TrueCall) -> Iterator[Pair]:
    """The figures of one call."""
    last = true.last

    def since_start(at_ns: int) -> int:
        return true.connect_ns + at_ns - min(last.received_ns, last.arrived_ns)

    visible = next((chunk.at_ns for chunk in last.token_chunks if chunk.kind in "ct"), None)
    figures: dict[str, tuple[int | None, int | None]] = {
        "connect": (call.connect_ns, true.connect_ns),
        "send": (call.send_ns, true.upload_ns),
        "TTFT": (call.ttft_ns, since_start(true.first_token_ns)),
        "TTFO": (call.ttfo_ns, None if visible is None else since_start(visible)),
        "first event": (call.first_event_ns, since_start(next(c.at_ns for c in last.chunks if c.kind not in "km"))),
        "tail": (call.tail_ns, true.end_ns - true.last_token_ns),
        "retry": (call.retry_ns, true.retry_ns),
    }
    if true.is_buffered:
        figures["generation"] = (call.generation_ns, true.last_token_ns - last.arrived_ns)
    else:
        figures["first-token wait"] = (call.wait_ns, true.first_token_ns - last.arrived_ns)
        figures["decode"] = (call.decode_ns, true.last_token_ns - true.first_token_ns)
    measured = {"gateway": call.gateway_ns, "queue": call.server.queue_ns, "prefill": call.server.prefill_ns}
    figures |= {name: (measured[name], ns) for name, ns in true.reported(call).items()}
    for name, (found_ns, true_ns) in figures.items():
        if true_ns is not None:
            yield Pair("call", name, found_ns, true_ns)


def ledger_pairs(
    frame: SessionFrame, calls: Sequence[TrueCall], stamps: Mapping[int, tuple[int, int]]
) -> Iterator[Pair]:
    """The rows of one session's ledger."""
    true: defaultdict[str, int] = defaultdict(int)
    for call, known in zip(frame.calls, calls, strict=True):
        parts = known.reported(call)
        true["connect"] += known.connect_ns
        true["network"] += known.upload_ns
        true["retry"] += known.retry_ns
        true["tail"] += known.end_ns - known.last_token_ns
        if known.is_buffered:
            true["generation"] += known.last_token_ns - known.last.arrived_ns
            continue
        true["decode"] += known.last_token_ns - known.first_token_ns
        true["first_token_wait"] += known.first_token_ns - known.last.arrived_ns - sum(parts.values())
        for row, ns in parts.items():
            true[row] += ns
    tools = tool_times(frame, stamps)
    true["tool"] = sum(tools.values())
    true["think"] = THINK_NS * sum(span.name == semconv.THINK for span in frame.spans)
    for row, measured_ns in frame.ledger.rows.items():
        if row != "agent" and (measured_ns is not None or true[row]):
            yield Pair("ledger", row, measured_ns, true[row])
    yield from agent_pairs(frame, calls, tools)


def tool_times(frame: SessionFrame, stamps: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    """True ns of the tools of each step, by its span id: commands run in parallel, from first begin to last end."""
    by_step: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for span in frame.spans:
        if span.ref.span_id in stamps and span.parent is not None:
            by_step[span.parent.span_id].append(stamps[span.ref.span_id])
    return {step: max(end for _, end in w) - min(start for start, _ in w) for step, w in by_step.items()}


def agent_pairs(frame: SessionFrame, calls: Sequence[TrueCall], tools: Mapping[int, int]) -> Iterator[Pair]:
    """The loop's own work, between one response and the next request.

    No witness sees it alone. What the server saw from `[DONE]` to the next request, less the true times of tools and
    pauses, less what agentprof calls connecting, sending and unattributed (compared by themselves), is what the loop
    must have taken.
    """
    spans = {span.ref: span for span in frame.spans}
    for (before, known_before), (after, known_after) in pairwise(zip(frame.calls, calls, strict=True)):
        step, next_step = (parent_of(spans[call.ref]) for call in (before, after))
        inside = [s for s in frame.spans if before.end_ns <= s.start_ns < after.start_ns]
        loop = [s for s in inside if s.name in _LOOP_NAMES and parent_of(s) in (step, next_step)]
        commands = [s for s in inside if s.name == _COMMAND]
        own = _covered_ns(loop + commands) - _covered_ns(commands)  # one command may run while another is dispatched
        every = _covered_ns(s for s in inside if not s.name.startswith(semconv.STEP))
        thought_ns = THINK_NS * any(span.name == semconv.THINK for span in inside)
        elsewhere_ns = (after.connect_ns or 0) + (after.send_ns or 0) + after.start_ns - before.end_ns - every
        gap_ns = known_after.attempts[0].arrived_ns - known_before.end_ns
        yield Pair("ledger", "agent, each gap", own, gap_ns - tools.get(step, 0) - thought_ns - elsewhere_ns)


def _covered_ns(spans: Iterable[Span]) -> int:
    """How long at least one of the spans was open."""
    covered, until = 0, 0
    for start, end in sorted((span.start_ns, span.end_ns) for span in spans):
        covered += max(0, end - max(start, until))
        until = max(until, end)
    return covered


def parent_of(span: Span) -> int:
    """The id of the span above; 0 for a root."""
    return span.parent.span_id if span.parent is not None else 0


def pairs_of(
    frames: Sequence[SessionFrame], log: Sequence[RequestTruth], stamps: Mapping[int, tuple[int, int]], connect_ns: int
) -> list[Pair]:
    """Every figure of these sessions beside its truth. Raises SystemExit where a call isn't in the server's log."""
    known, opened = requests_by_call(log), first_requests(log)
    pairs: list[Pair] = []
    for frame in frames:
        trace = frame.tree.root.ref.trace_id
        calls = []
        for call in frame.calls:
            attempts = known.get((trace, call.ref.span_id))
            if not attempts:
                raise SystemExit(f"session {frame.session}: a call of step {call.step} isn't in the server's log")
            spent_ns = connect_ns if attempts[-1].number in opened else 0
            calls.append(TrueCall(attempts, spent_ns, call.gateway_ns is not None))
            pairs += call_pairs(call, calls[-1])
        pairs += ledger_pairs(frame, calls, stamps)
    return pairs
