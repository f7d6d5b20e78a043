"""What to know before trusting a session's figures: short sentences, each saying what to do."""

from __future__ import annotations

from collections.abc import Iterator

from agentprof import semconv
from agentprof.analysis import attributes
from agentprof.analysis.calls import BUFFERED, BURSTS, LATE_DELTA, SHORT_OF_FORCED_LENGTH, CallFrame
from agentprof.analysis.frames import SessionFrame
from agentprof.analysis.ledger import REPORTED_ROWS
from agentprof.analysis.tree import rest_of, word_of

UNATTRIBUTED_SHARE = 0.01
LAG_NS = 5_000_000
EXCESS_SHARE, EXCESS_NS = 0.01, 1_000_000
TEMPLATE_TOKENS, TEMPLATE_SHARE = 16, 0.05


def session_cautions(session: SessionFrame, *, has_warmup: bool) -> list[str]:
    """The cautions of one session, the gravest first; `has_warmup`: a warm-up ran for its scenario and backend."""
    return [
        *_on_the_session(session, has_warmup),
        *_on_the_clock(session),
        *_on_the_tokens(session),
        *_on_the_server(session),
    ]


def _on_the_session(session: SessionFrame, has_warmup: bool) -> Iterator[str]:
    if session.outcome not in {None, "completed"}:
        reason = f" ({session.outcome_reason})" if session.outcome_reason else ""
        yield f"The session ended as {session.outcome}{reason}: its figures cover only what ran."
    if session.checks_passed is False:
        yield "Checks failed: the task was not solved, so don't compare its time with sessions that solved it."
    failed = [call for call in session.calls if call.error]
    if failed:
        kinds = ", ".join(sorted({call.error.kind for call in failed if call.error}))
        yield (
            f"{len(failed)} of {_calls(session.calls)} failed ({kinds}): rates cover the others, and partial tokens "
            "don't count."
        )
    yield from _on_the_tools(session)
    if session.mode and not session.is_warmup and not has_warmup:
        yield "No warm-up ran before it, so start-up costs may be in its figures: add --warmup 1."


def _on_the_tools(session: SessionFrame) -> Iterator[str]:
    """Tools that couldn't do what they were asked; a command's exit code is its own business."""
    tools = [span for span in session.spans if word_of(span) == semconv.EXECUTE_TOOL]
    failed = [span for span in tools if span.error and not attributes.truth(span, semconv.TIMED_OUT)]
    if failed:
        first = failed[0]
        name = attributes.text(first, semconv.TOOL_NAME) or rest_of(first)
        yield f"{len(failed)} of {len(tools)} tool calls failed; the first, {name}: {first.error}"
    stopped = sum(attributes.truth(span, semconv.TIMED_OUT) or False for span in tools)
    if stopped:
        yield f"{stopped} of {len(tools)} tool calls were stopped at limits.tool: their time is the limit's."


def _on_the_clock(session: SessionFrame) -> Iterator[str]:
    unattributed_ns = session.ledger.rows["unattributed"] or 0
    if unattributed_ns > UNATTRIBUTED_SHARE * session.wall_ns:
        share = 100 * unattributed_ns / session.wall_ns
        yield f"{share:.1f} % of the time is unattributed: look for spans that are missing or end early in the trace."
    if session.lag_p99_ns is not None and session.lag_p99_ns > LAG_NS:
        yield (
            f"The client was late by {session.lag_p99_ns / 1e6:.1f} ms at p99 (limit 5 ms), which blurs "
            "first_token_wait, decode and tail: lower --concurrency or free this machine's processors."
        )


def _on_the_tokens(session: SessionFrame) -> Iterator[str]:
    calls = session.finished_calls
    estimated = [call for call in calls if call.is_estimated]
    if estimated:
        yield (
            f"Tokens of {_of(estimated, calls)} rest on counted token events, so their token counts or decode rates "
            "are estimated: have the server send usage (stream_options.include_usage) or token ids."
        )
    silent = [call for call in calls if call.output_tokens is None]
    if silent and len(silent) < len(calls):
        yield f"{_of(silent, calls)} reported no output tokens: the session's tokens and agent rate are lower bounds."
    buffered = [call for call in calls if BUFFERED in call.flags]
    if buffered:
        yield (
            f"{_of(buffered, calls)} arrived buffered: their generation isn't split and their TTFT is an upper bound. "
            "Look for a proxy that buffers, or a tool parser that withholds."
        )
    held_back = [call for call in calls if any(flag.partition(":")[0] in {LATE_DELTA, BURSTS} for flag in call.flags)]
    if held_back:
        yield (
            f"{_of(held_back, calls)} were held back after the first token ({LATE_DELTA}, {BURSTS}): decode times "
            "hold, but gaps between chunks say nothing. Look for a proxy or a tool parser that collects tokens."
        )
    short = [call for call in calls if SHORT_OF_FORCED_LENGTH in call.flags]
    if short:
        yield (
            f"{_of(short, calls)} ended short of the forced length{_shortest(short)}: rates use what came; see "
            "whether the server honours ignore_eos."
        )
    if session.length == "forced" and any(call.server.draft_tokens for call in calls):
        yield "Length was forced and drafts were used, so acceptance isn't representative: repeat with length: free."


def _on_the_server(session: SessionFrame) -> Iterator[str]:
    split = [call for call in session.calls if call.wait_ns is not None]
    excess = [call for call in split if call.excess_ns > max(EXCESS_NS, EXCESS_SHARE * (call.wait_ns or 0))]
    if excess:
        worst_ns = max(call.excess_ns for call in excess)
        yield (
            f"Times reported by server or gateway exceed the wait they lie in for {_of(excess, split)}, by up to "
            f"{worst_ns / 1e6:.1f} ms: they were cut to fit; check what the server's times include."
        )
    for row in REPORTED_ROWS:
        silent = [call for call in split if row not in call.rows]
        if silent and len(silent) < len(split):
            yield (
                f"{_of(silent, split)} reported no {row} time: the {row} row is a lower bound, and the rest is in "
                "first_token_wait."
            )
    yield from _on_the_cache(session)


def _on_the_cache(session: SessionFrame) -> Iterator[str]:
    first = session.calls[0] if session.calls else None
    if session.cache != "isolated" or first is None or not first.cached_tokens or not first.prompt_tokens:
        return
    if first.cached_tokens > max(TEMPLATE_TOKENS, TEMPLATE_SHARE * first.prompt_tokens):
        yield (
            f"The cache was to be isolated, but {first.cached_tokens:,} of the first call's {first.prompt_tokens:,} "
            "prompt tokens came from it: restart the server, or check that its template renders the nonce first."
        )


def _shortest(calls: list[CallFrame]) -> str:
    """The first call that fell short, as `(37 of 128 tokens in step 3)`; empty where the counts are missing."""
    call = calls[0]
    if call.output_tokens is None or call.forced_tokens is None:
        return ""
    where = "" if call.step is None else f" in step {call.step}"
    return f" ({call.output_tokens} of {call.forced_tokens} tokens{where})"


def _of(some: list[CallFrame], whole: list[CallFrame] | tuple[CallFrame, ...]) -> str:
    return f"{len(some)} of {_calls(whole)}"


def _calls(calls: list[CallFrame] | tuple[CallFrame, ...]) -> str:
    return f"{len(calls)} call" + ("" if len(calls) == 1 else "s")
