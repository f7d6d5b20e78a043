"""The time of each call by what it was spent on, at its own length whatever ran beside it (docs/bridge.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from agentprof import semconv
from agentprof.analysis.calls import CallFrame
from agentprof.analysis.frames import SessionFrame
from agentprof.analysis.tree import WIRE_LEAVES, Tree, is_failed, word_of
from agentprof.records.spans import Span

CallKind = Literal["split", "unsplit", "failed", "bare"]

WAIT_LEAVES = frozenset({semconv.CONNECT, semconv.SEND, semconv.FIRST_TOKEN_WAIT})
"""The leaves that a first-token wait consists of, pool wait left out."""

_LLAMA_CPP = "llama.cpp timings"  # as `agentprof.server.source` says it


@dataclass(frozen=True, slots=True)
class CallTimes:
    """What one call took, in nanoseconds; the parts add up to its leaf spans.

    kind: `split` at its first token; `unsplit`, because buffered or without a token event; `failed` for good; `bare`,
    whose trace has no phases. first_tokens: n₁, at most `tokens`; 1 where it isn't known. retry_ns: failed attempts and
    back-off, and everything of a failed call. connect_ns: pool wait left out.
    """

    call: CallFrame
    kind: CallKind
    tokens: int
    first_tokens: int
    pool_wait_ns: int
    connect_ns: int
    send_ns: int
    first_token_wait_ns: int
    decode_ns: int
    generation_ns: int
    tail_ns: int
    retry_ns: int

    @property
    def wait_ns(self) -> int:
        """First-token wait of a split call: start of the attempt to its first token event; else 0."""
        return self._sent_to_first_ns if self.kind == "split" else 0

    @property
    def unsplit_ns(self) -> int:
        """Start of the attempt to the last token of an unsplit call; else 0."""
        return 0 if self.kind == "split" else self._sent_to_first_ns + self.decode_ns + self.generation_ns

    @property
    def _sent_to_first_ns(self) -> int:
        return self.connect_ns + self.send_ns + self.first_token_wait_ns

    @property
    def decoded_tokens(self) -> int:
        """Tokens after the first read, of a split call; else 0."""
        return self.tokens - self.first_tokens if self.kind == "split" else 0

    @property
    def split_decode_ns(self) -> int:
        """Decode time of a split call; else 0, since an unsplit one has it in `unsplit_ns`."""
        return self.decode_ns if self.kind == "split" else 0

    @property
    def total_ns(self) -> int:
        """Everything together, pool wait and retries included."""
        split_ns = self._sent_to_first_ns + self.decode_ns + self.generation_ns
        return self.pool_wait_ns + split_ns + self.tail_ns + self.retry_ns

    @property
    def decoding_steps(self) -> int | None:
        """Decoding steps of the server, None where it doesn't tell.

        As reported; else output tokens less accepted drafts, since each step adds one token of the model's own.
        llama.cpp mentions drafts only where there were some: without them each token is a step.
        """
        server = self.call.server
        if server.decode_steps is not None:
            return server.decode_steps
        if server.accepted_draft_tokens is not None:
            return max(0, self.tokens - server.accepted_draft_tokens)
        return self.tokens if server.source == _LLAMA_CPP else None


def call_times(session: SessionFrame) -> tuple[CallTimes, ...]:
    """The times of a session's calls, sub-agents included, in order of start."""
    chats = {span.ref: span for span in session.tree.all(semconv.CHAT)}
    return tuple(_times_of(session.tree, chats[call.ref], call) for call in session.calls)


def _times_of(tree: Tree, chat: Span, call: CallFrame) -> CallTimes:
    spent = dict.fromkeys((*WIRE_LEAVES, semconv.ATTEMPT, semconv.BACKOFF), 0)
    for span in _leaves(tree, chat):
        spent[word_of(span)] += max(0, span.duration_ns)
    retry_ns = spent[semconv.ATTEMPT] + spent[semconv.BACKOFF]
    wire_ns = sum(spent[word] for word in WIRE_LEAVES)
    if call.error is not None:
        return CallTimes(call, "failed", 0, 0, 0, 0, 0, 0, 0, 0, 0, retry_ns + wire_ns)
    tokens = call.output_tokens or 0
    pool_wait_ns = min(call.pool_wait_ns or 0, spent[semconv.CONNECT])
    return CallTimes(
        call=call,
        kind=_kind(call, spent),
        tokens=tokens,
        first_tokens=min(tokens, 1 if call.first_read_tokens is None else call.first_read_tokens),
        pool_wait_ns=pool_wait_ns,
        connect_ns=spent[semconv.CONNECT] - pool_wait_ns,
        send_ns=spent[semconv.SEND],
        first_token_wait_ns=spent[semconv.FIRST_TOKEN_WAIT],
        decode_ns=spent[semconv.DECODE],
        generation_ns=spent[semconv.GENERATION],
        tail_ns=spent[semconv.TAIL],
        retry_ns=retry_ns,
    )


def _kind(call: CallFrame, spent: dict[str, int]) -> CallKind:
    if call.is_unsplit:
        return "unsplit"
    if call.wait_ns is not None:
        return "split"
    return "unsplit" if any(spent[word] for word in WIRE_LEAVES) else "bare"


def _leaves(tree: Tree, chat: Span) -> Iterator[Span]:
    """Phases of the attempt that succeeded, failed attempts whole, and back-off."""
    for span in tree.below(chat):
        if word_of(span) == semconv.ATTEMPT and not is_failed(span):
            yield from tree.below(span)
        else:
            yield span


def wait_parts(times: CallTimes) -> dict[str, int]:
    """What a split call's first-token wait is made of, for the parts that are reported, and the `rest`.

    Cut as the ledger cuts them: the round trip yields first, then gateway, queue, prefill.
    """
    call, room = times.call, times.first_token_wait_ns
    parts = {"connect": times.connect_ns}
    reported = (
        ("prefill", call.server.prefill_ns),
        ("queue", call.server.queue_ns),
        ("gateway", call.gateway_ns),
        ("network", call.rtt_ns),
    )
    for name, ns in reported:
        if ns is not None:
            parts[name] = min(ns, room)
            room -= parts[name]
    parts["network"] = parts.get("network", 0) + times.send_ns
    parts["rest"] = room
    return parts


def tokens_per_step(calls: Sequence[CallTimes]) -> tuple[int, int] | None:
    """Σ output tokens and Σ decoding steps over split calls; None unless each that decoded tells its steps."""
    told = [(times.tokens, times.decoding_steps) for times in calls if times.decoded_tokens]
    steps = [count for _, count in told if count]
    if not told or len(steps) < len(told):
        return None
    return sum(tokens for tokens, _ in told), sum(steps)
