"""The numbers of one call, from its reply and stamps. Each is defined in docs/metrics.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from agentprof.records.call import Reply, TokenEvent, TokenKind
from agentprof.wire.shape import burst_size, first_read, has_counts, has_late_delta, is_buffered, token_weights
from agentprof.wire.stream_errors import is_context_overflow

_PEAK_WINDOW_NS = 1_000_000_000
_VISIBLE: frozenset[TokenKind] = frozenset({"content", "tool_call"})
_FAILED_FINISHES = frozenset({"error", "abort"})


@dataclass(frozen=True, slots=True)
class CallFigures:
    """The numbers of one call. None = not measured.

    ttft_ns, ttfo_ns, first_event_ns: from the attempt's start to the first token event, the first visible answer token
    (content or tool call) and the first event of any kind. first_token_ns, last_token_ns: stamps on the monotonic
    clock. decode_ns: first to last token event; None for a buffered stream and for one without token events, 0 with
    one. tail_ns: last token event to the end. decode_split_ns: decode by what its tokens were, each gap going to the
    event that ends it; sums to decode_ns. first_read_tokens: n₁. peak_interval_tok_s: the best window of one second,
    or of the whole decode where that is shorter, never below the mean; None where the stream was held back.
    is_estimated: the token figures rest on counted events or on characters. flags: short words (docs/metrics.md).
    """

    ttft_ns: int | None
    ttfo_ns: int | None
    first_event_ns: int | None
    first_token_ns: int | None
    last_token_ns: int | None
    decode_ns: int | None
    tail_ns: int | None
    is_buffered: bool
    output_tokens: int
    output_tokens_source: Literal["server", "counted"]
    is_estimated: bool
    first_read_tokens: int
    decode_split_ns: Mapping[TokenKind, int]
    peak_interval_tok_s: float | None
    flags: tuple[str, ...]

    @property
    def decode_tok_s(self) -> float | None:
        """Decode rate: (output tokens − n₁) / decode time. None without a decode time, or with one of 0."""
        if not self.decode_ns:
            return None
        return (self.output_tokens - self.first_read_tokens) * 1e9 / self.decode_ns


def measure(reply: Reply, *, start_ns: int, end_ns: int, forced_tokens: int | None) -> CallFigures:
    """The numbers of a call whose successful attempt began at `start_ns` and whose stream ended at `end_ns`.

    forced_tokens: how many tokens the server was told to write, None for a natural end.
    """
    events = reply.events
    output_tokens, is_counted = _output_tokens(reply)
    buffered = is_buffered(events, output_tokens)
    n1, is_n1_estimated = _first_read_tokens(events, output_tokens)
    first_ns, last_ns = (events[0].at_ns, events[-1].at_ns) if events else (None, None)
    decode_ns = None if first_ns is None or last_ns is None or buffered else last_ns - first_ns
    is_late = not buffered and has_late_delta(events, output_tokens)
    is_estimated = is_counted or is_n1_estimated or (buffered and not has_counts(events))
    visible = next((event.at_ns for event in events if event.kind in _VISIBLE), None)
    return CallFigures(
        ttft_ns=_since(start_ns, first_ns),
        ttfo_ns=_since(start_ns, visible),
        first_event_ns=_since(start_ns, reply.first_event_ns),
        first_token_ns=first_ns,
        last_token_ns=last_ns,
        decode_ns=decode_ns,
        tail_ns=None if last_ns is None else end_ns - last_ns,
        is_buffered=buffered,
        output_tokens=output_tokens,
        output_tokens_source="counted" if is_counted else "server",
        is_estimated=is_estimated,
        first_read_tokens=n1,
        decode_split_ns={} if decode_ns is None else _decode_split_ns(events),
        peak_interval_tok_s=None if is_late or not decode_ns else _peak_tok_s(events, output_tokens - n1, decode_ns),
        flags=(
            *(("buffered", "ttft_upper_bound") if buffered else ()),
            *(("estimated_tokens",) if is_estimated else ()),
            *(("no_usage",) if is_counted else ()),
            *(("late_delta",) if is_late else ()),
            *_burst_flag(events, is_held_back=buffered),
            *_ending_flags(reply, None if is_counted else output_tokens, forced_tokens),
        ),
    )


def inter_chunk_ns(reply: Reply, figures: CallFigures) -> tuple[int, ...]:
    """Gaps between reads that carry tokens, in order; empty where the stream was held back, as they then say nothing.

    It is the latency between chunks, never between tokens: a chunk may carry several.
    """
    if figures.is_buffered or "late_delta" in figures.flags:
        return ()
    stamps = [event.at_ns for i, event in enumerate(reply.events) if i == 0 or event.read != reply.events[i - 1].read]
    return tuple(after - before for before, after in pairwise(stamps))


def failure(reply: Reply, *, has_clean_eof: bool) -> tuple[str, str] | None:
    """Why a stream failed, as (kind, message); None where it didn't.

    A finish reason or `[DONE]` makes a stream whole, either of them alone too, however the connection ended.
    """
    if reply.error is not None:
        kind = "context_overflow" if is_context_overflow(reply.error) else "stream_error"
        return kind, f"the server reported an error in the stream: {reply.error}"
    if reply.finish in _FAILED_FINISHES:
        return "stream_error", f'the stream ended with finish reason "{reply.finish}"'
    if reply.finish is not None or reply.has_done:
        return None
    how = "the stream ended" if has_clean_eof else "the connection broke"
    if reply.first_event_ns is None:
        return "truncated", f"{how} without any event that could be read"
    return "truncated", f"{how} after {len(reply.events)} token events, with neither a finish reason nor [DONE]"


def are_calls_whole(reply: Reply) -> bool:
    """Whether the reply's tool calls may be run: each has a name, and arguments that are a JSON object.

    The finish reason doesn't decide: `stop` or none beside calls that are whole is fine, and `tool_calls` may hide a
    cut. Only where the length cut the reply, a last call without arguments is taken as one whose arguments were cut
    off. True without any calls.
    """
    calls = reply.tool_calls
    if calls and reply.finish == "length" and not calls[-1].parsed:
        return False
    return all(call.name and call.parsed is not None for call in calls)


def _since(start_ns: int, at_ns: int | None) -> int | None:
    return None if at_ns is None else at_ns - start_ns


def _output_tokens(reply: Reply) -> tuple[int, bool]:
    """Output tokens, and whether they were counted here.

    Counted from token events (by token ids where they came) without usage, and where usage says 0 beside tokens.
    """
    reported = reply.usage.output_tokens
    if reported is not None and (reported or not reply.events):
        return reported, False
    return sum(1 if event.tokens is None else event.tokens for event in reply.events), True


def _first_read_tokens(events: tuple[TokenEvent, ...], output_tokens: int) -> tuple[int, bool]:
    """n₁, and whether it is an estimate: the number of events where tokens outnumber them and counts lack."""
    if not events:
        return 0, False
    first = first_read(events)
    counted = sum(1 if event.tokens is None else event.tokens for event in first)
    return min(counted, output_tokens), not has_counts(first) and output_tokens > len(events)


def _decode_split_ns(events: tuple[TokenEvent, ...]) -> dict[TokenKind, int]:
    split: dict[TokenKind, int] = {}
    for before, after in pairwise(events):
        split[after.kind] = split.get(after.kind, 0) + after.at_ns - before.at_ns
    return split


def _peak_tok_s(events: tuple[TokenEvent, ...], decoded_tokens: int, decode_ns: int) -> float:
    """Tokens per second of the best window, in tok/s; the window is open on the left, as n₁ is no decoding."""
    later = events[len(first_read(events)) :]
    window_ns = min(_PEAK_WINDOW_NS, decode_ns)
    weights = token_weights(later, decoded_tokens)
    best = inside = 0.0
    oldest = 0
    for event, weight in zip(later, weights, strict=True):
        inside += weight
        while later[oldest].at_ns <= event.at_ns - window_ns:
            inside -= weights[oldest]
            oldest += 1
        best = max(best, inside)
    return max(best * 1e9 / window_ns, decoded_tokens * 1e9 / decode_ns)


def _burst_flag(events: tuple[TokenEvent, ...], *, is_held_back: bool) -> tuple[str, ...]:
    size = None if is_held_back else burst_size(events)
    return () if size is None else (f"bursts:{size}",)


def _ending_flags(reply: Reply, reported_tokens: int | None, forced_tokens: int | None) -> tuple[str, ...]:
    """Flags of how the stream ended. Tokens that were only counted here can't show that a forced length was missed."""
    is_short = reported_tokens is not None and forced_tokens is not None and reported_tokens < forced_tokens
    flags = {
        "no_token_events": not reply.events,
        "no_finish": reply.finish is None and reply.has_done,
        "no_done": reply.finish is not None and not reply.has_done,
        "malformed_lines": reply.malformed > 0,
        "length_cut": reply.finish == "length" and forced_tokens is None,
        "short_of_forced_length": is_short,
    }
    return tuple(flag for flag, is_set in flags.items() if is_set)
