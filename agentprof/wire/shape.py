"""The shape of a stream: held back whole, held back late, or let through in bursts (docs/metrics.md).

All three come from something between the model and the client: a gateway's buffer, a parser that withholds text.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, median_low

from agentprof.records.call import TokenEvent

_BUFFERED_MIN_TOKENS = 16  # a call of so few tokens may well fit one read
_FULL_READ_EVENTS = 32  # no model writes so many within the time of one read: a buffer was emptied
_CLUMP_GAP_NS = 1_000_000  # reads closer than this were sent together
_LATE_SILENCE_NS = 250_000_000
_LATE_MIN_TOKENS = 16
_LATE_RATIO = 8
_LATE_MIN_GAPS = 4  # from so many other gaps on, the silence must stand out against them too
_BURST_MIN_EVENTS = 4
_BURST_MIN_COUNT = 3


def first_read(events: Sequence[TokenEvent]) -> Sequence[TokenEvent]:
    """The token events of the first read that carries any."""
    size = next((i for i, event in enumerate(events) if event.read != events[0].read), len(events))
    return events[:size]


def _first_flush(events: Sequence[TokenEvent]) -> Sequence[TokenEvent]:
    """The first read that carries tokens, with the reads that bring the rest of the same flush."""
    end = len(first_read(events))
    size = end
    while end < len(events) and size >= _FULL_READ_EVENTS:
        following = first_read(events[end:])
        if following[0].at_ns - events[end - 1].at_ns > _CLUMP_GAP_NS:
            break
        size = len(following)
        end += size
    return events[:end]


def has_counts(events: Sequence[TokenEvent]) -> bool:
    """Whether each of the events has a token count of its own."""
    return all(event.tokens is not None for event in events)


def token_weights(events: Sequence[TokenEvent], total: int) -> list[float]:
    """Tokens of each event: its own count; events without one share what is left of `total`.

    They share it by characters, or evenly where none of them has any.
    """
    unknown = [event for event in events if event.tokens is None]
    left = max(0, total - sum(event.tokens for event in events if event.tokens is not None))
    chars = sum(event.chars for event in unknown)

    def weight(event: TokenEvent) -> float:
        if event.tokens is not None:
            return float(event.tokens)
        return left * event.chars / chars if chars else left / len(unknown)

    return [weight(event) for event in events]


def is_buffered(events: Sequence[TokenEvent], output_tokens: int) -> bool:
    """Whether the first read that carries tokens brings 90 % or more of a call of more than 16 output tokens.

    By token counts where every event has one, else by characters. A flush that is larger than the socket's buffer
    comes in several reads: one of dozens of events and those within a millisecond of it count as one.
    """
    if not events or output_tokens <= _BUFFERED_MIN_TOKENS:
        return False
    first = _first_flush(events)
    if len(first) == len(events):
        return True
    if has_counts(events):
        return 10 * sum(event.tokens or 0 for event in first) >= 9 * output_tokens
    chars = sum(event.chars for event in events)
    return chars > 0 and 10 * sum(event.chars for event in first) >= 9 * chars


def has_late_delta(events: Sequence[TokenEvent], output_tokens: int) -> bool:
    """Whether a long silence was followed by one large delivery, after a first token had come.

    Looks at the largest delivery after the first one (reads less than 1 ms apart are one): at least 16 tokens and 8
    times the typical other delivery, after a silence of 250 ms or more that is, where there are enough gaps to tell,
    8 times the typical other gap.
    """
    clumps = _clumps(events, token_weights(events, output_tokens)) if events else []
    if len(clumps) < 2:
        return False
    late = max(range(1, len(clumps)), key=lambda i: clumps[i][1])
    gaps = [clumps[i][0] - clumps[i - 1][0] for i in range(1, len(clumps))]
    silence, tokens = gaps.pop(late - 1), clumps[late][1]
    others = [weight for i, (_, weight, _) in enumerate(clumps) if i != late]
    if silence < _LATE_SILENCE_NS or tokens < max(_LATE_MIN_TOKENS, _LATE_RATIO * median_low(others)):
        return False
    return len(gaps) < _LATE_MIN_GAPS or silence >= _LATE_RATIO * median_low(gaps)


def burst_size(events: Sequence[TokenEvent]) -> int | None:
    """Token events per burst, where the stream came in periodic bursts of equal size; None otherwise.

    At least three bursts of four events or more, sizes within a tenth of the median (or by one) and periods within
    half of it for four of five; the last burst may be cut short.
    """
    clumps = _clumps(events, [0.0] * len(events))
    if len(clumps) < _BURST_MIN_COUNT:
        return None
    sizes = [size for _, _, size in clumps]
    typical = median_low(sizes[:-1])
    tolerance = max(1, typical // 10)
    equal = [abs(size - typical) <= tolerance for size in sizes]
    if typical < _BURST_MIN_EVENTS or sum(equal) < _BURST_MIN_COUNT or 5 * sum(equal[:-1]) < 4 * len(equal[:-1]):
        return None
    periods = [clumps[i][0] - clumps[i - 1][0] for i in range(1, len(clumps))]
    typical_period = median(periods)
    steady = sum(2 * abs(period - typical_period) <= typical_period for period in periods)
    return typical if 5 * steady >= 4 * len(periods) - 1 else None


def _clumps(events: Sequence[TokenEvent], weights: Sequence[float]) -> list[tuple[int, float, int]]:
    """Deliveries: (stamp of the last event, tokens, events) of each group of events less than 1 ms apart."""
    clumps: list[tuple[int, float, int]] = []
    for event, weight in zip(events, weights, strict=True):
        if clumps and event.at_ns - clumps[-1][0] < _CLUMP_GAP_NS:
            _, tokens, size = clumps[-1]
            clumps[-1] = (event.at_ns, tokens + weight, size + 1)
        else:
            clumps.append((event.at_ns, weight, 1))
    return clumps
