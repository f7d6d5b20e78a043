"""A run's workload, apart from the backend that served it: each call's tokens, what a cache may hold, what is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentprof import semconv
from agentprof.analysis.frames import SessionFrame
from agentprof.analysis.ledger import LEDGER_ROWS, MODEL_ROWS, critical_path
from agentprof.analysis.points import CallPoint, CallSize, call_points, is_counted
from agentprof.analysis.probe import Drafting, ProbeFit, drafting
from agentprof.analysis.tree import WIRE_LEAVES, word_of
from agentprof.errors import InputError
from agentprof.records.spans import SpanRef

KEPT_ROWS = tuple(row for row in LEDGER_ROWS if row not in MODEL_ROWS)
"""The rows that a backend doesn't change: tool, agent, think, unattributed."""

_PARALLEL_SHARE = 0.99


@dataclass(frozen=True, slots=True)
class WorkCall:
    """One finished call of the run. share: how much of it lies on its session's critical path.

    held_tokens: the prompt of the call before it, which a cache may hold; 0 where there is none.
    """

    point: CallPoint
    share: float
    held_tokens: int


@dataclass(frozen=True, slots=True)
class WorkSession:
    """One completed session of the run and its finished calls."""

    frame: SessionFrame
    calls: tuple[WorkCall, ...]

    def kept_ns(self, row: str) -> int:
        """What a row that the backend doesn't change took."""
        return self.frame.ledger.rows[row] or 0


@dataclass(frozen=True, slots=True)
class Workload:
    """The completed sessions of a run, warm-ups left out. left_out: measured sessions that didn't complete."""

    sessions: tuple[WorkSession, ...]
    left_out: int

    @property
    def calls(self) -> tuple[WorkCall, ...]:
        """Of all sessions."""
        return tuple(call for session in self.sessions for call in session.calls)

    @property
    def has_cache(self) -> bool | None:
        """Whether the run's backend cached prompts; None where it didn't tell."""
        told = [call.point.cached_tokens for call in self.calls if call.point.cached_tokens is not None]
        return any(told) if told else None

    @property
    def drafting(self) -> Drafting | None:
        """How drafts fared in the run; None where nothing was drafted or told."""
        return drafting([call.point for call in self.calls], "the run")


def read_workload(sessions: Sequence[SessionFrame]) -> Workload:
    """Raises InputError where no measured session completed, or none made a call."""
    points: dict[SpanRef, CallPoint] = {point.call.ref: point for point in call_points(sessions)}
    counted = [session for session in sessions if is_counted(session)]
    measured = [session for session in sessions if not session.is_warmup]
    work = tuple(WorkSession(session, tuple(_calls(session, points))) for session in counted)
    if not any(session.calls for session in work):
        raise InputError("the run has no completed session with a finished call, so there is nothing to predict.")
    return Workload(work, len(measured) - len(counted))


def _calls(session: SessionFrame, points: dict[SpanRef, CallPoint]) -> Iterator[WorkCall]:
    owned = _owned_ns(session)
    held: list[int] = []
    for call in session.finished_calls:
        point = points[call.ref]
        whole = sum(ns or 0 for ns in point.rows.values())
        share = owned.get(call.ref, 0) / whole if whole else 1.0
        prompt = point.prompt_tokens
        before = next((tokens for tokens in reversed(held) if prompt is not None and tokens < prompt), 0)
        if prompt is not None:
            held.append(prompt)
        yield WorkCall(point, min(1.0, share), before)


def _owned_ns(session: SessionFrame) -> dict[SpanRef, int]:
    """What each call's phases own of the critical path."""
    owned: dict[SpanRef, int] = {}
    for segment in critical_path(session.tree):
        if word_of(segment.span) in WIRE_LEAVES:
            chat = session.tree.nearest(segment.span, semconv.CHAT)
            if chat is not None:
                owned[chat.ref] = owned.get(chat.ref, 0) + segment.end_ns - segment.start_ns
    return owned


def size_on(call: WorkCall, work: Workload, probe: ProbeFit, output_factor: float) -> CallSize | None:
    """The call as the probed backend would see it; None where its prompt or output tokens aren't known."""
    point = call.point
    prompt, output = point.prompt_tokens, point.output_tokens
    if prompt is None or output is None:
        return None
    cached = cached_on(call, work, probe)
    written = output * output_factor
    decoded = max(0.0, written - (1 if probe.is_unsplit else probe.first_read_tokens))
    steps, drafted = _drafted(point, decoded, drafting_on(work, probe))
    return CallSize(prompt - cached, cached, written, decoded, steps, drafted, point.others)


def cached_on(call: WorkCall, work: Workload, probe: ProbeFit) -> int:
    """Prompt tokens that the probed backend's cache holds: as the run saw them, in whole blocks, fewer than all.

    Where the run's backend didn't cache or didn't tell: the prompt of the call before. None where the probe found no
    cache.
    """
    if probe.has_cache is False:
        return 0
    seen = call.point.cached_tokens if work.has_cache else call.held_tokens
    if probe.has_cache is None and not work.has_cache:
        seen = 0
    room = max(0, (call.point.prompt_tokens or 0) - 1)
    return min(seen or 0, room) // probe.block_tokens * probe.block_tokens


def drafting_on(work: Workload, probe: ProbeFit) -> Drafting | None:
    """How drafts fare on the run's text: as the probe measured on it, else as in the run, else as on synthetic text."""
    if probe.drafting is None or probe.drafting.source == "own text":
        return probe.drafting
    return work.drafting or probe.drafting


def _drafted(point: CallPoint, decoded: float, known: Drafting | None) -> tuple[float, float]:
    """Decoding steps and drafted tokens of a call."""
    if known is None:
        return decoded, 0.0
    if known.source == "the run" and point.decoded_tokens and point.steps:
        share = decoded / point.decoded_tokens
        return point.steps * share, (point.drafted_tokens or 0) * share
    steps = decoded / known.tokens_per_step
    return steps, steps * known.drafted_per_step


def workload_cautions(work: Workload, probe: ProbeFit) -> Iterator[str]:
    """What to know of the run before its prediction is trusted."""
    calls = work.calls
    if work.left_out:
        yield f"{work.left_out} of the run's sessions didn't complete and are left out."
    unknown = sum(call.point.prompt_tokens is None or call.point.output_tokens is None for call in calls)
    if unknown:
        yield (
            f"{unknown} of {len(calls)} calls tell no prompt or output tokens and keep the run's own times: have the "
            "server send usage (stream_options.include_usage)."
        )
    failed = sum(len(session.frame.calls) - len(session.calls) for session in work.sessions)
    if failed or any(call.point.call.retry_ns for call in calls):
        yield "Retries and failed calls of the run are left out: the new backend is taken to fail never."
    if any(call.share < _PARALLEL_SHARE for call in calls):
        yield "Calls ran in parallel: each is taken to keep its share of the critical path."
    yield from _on_the_cache(work, probe)
    yield from _on_drafts(work, probe)


def _on_the_cache(work: Workload, probe: ProbeFit) -> Iterator[str]:
    if probe.has_cache is False:
        if work.has_cache:
            yield "The probed backend caches no prompts: every call computes its whole prompt."
        return
    if probe.has_cache is None:
        yield "The probe can't tell whether prompts are cached; what the run found cached is taken as held."
    elif not work.has_cache:
        told = "cached no prompts" if work.has_cache is False else "didn't tell what was cached"
        yield f"The run's backend {told}: each call is taken to find the prompt of the call before it."


def _on_drafts(work: Workload, probe: ProbeFit) -> Iterator[str]:
    known = drafting_on(work, probe)
    if known is None:
        return
    if known.source == "the run":
        yield "Drafts are taken to be accepted as in the run: measure them with `agentprof probe --run`."
    elif known.source == "synthetic text":
        yield (
            "Drafts were accepted on the probe's synthetic text, which isn't representative: probe with --run and a "
            "run made with --capture-content."
        )
