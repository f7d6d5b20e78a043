"""How long things take on the simulated server: pure arithmetic, in nanoseconds that the time scale has divided."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from agentprof.serve.sim.profile import Profile, Speculation

_DECK = 32
_DEFAULT_STEP_NS = 20_000_000


@dataclass(frozen=True, slots=True)
class Pace:
    """The times of a profile, divided by the time scale."""

    prefill_base: float
    prefill_token: float
    prefill_pair: float
    prefill_jitter: float
    step: float
    step_context_token: float
    step_sequence: float
    step_jitter: float
    inject_first_token: float
    inject_decode: float
    tail: float
    gateway: float

    @classmethod
    def of(cls, profile: Profile, time_scale: float) -> Pace:
        """Take the times of a profile."""
        step = float(profile.decode.step if profile.decode.step is not None else _DEFAULT_STEP_NS)
        if profile.decode.tpot is not None:
            step = profile.decode.tpot * mean_length(length_probabilities(profile.speculation))
        return cls(
            prefill_base=profile.prefill.base / time_scale,
            prefill_token=profile.prefill.per_token / time_scale,
            prefill_pair=profile.prefill.attention / 1e6 / time_scale,
            prefill_jitter=profile.prefill.jitter / time_scale,
            step=step / time_scale,
            step_context_token=profile.decode.per_context_token / time_scale,
            step_sequence=profile.decode.per_sequence / time_scale,
            step_jitter=profile.decode.jitter / time_scale,
            inject_first_token=profile.inject.first_token / time_scale,
            inject_decode=profile.inject.decode / time_scale,
            tail=(profile.tail + profile.inject.tail) / time_scale,
            gateway=(profile.gateway.overhead if profile.gateway else 0) / time_scale,
        )

    def prefill_ns(self, uncached_tokens: int, cached_tokens: int, random: Random) -> int:
        """From the slot to the end of the prefill."""
        pairs = uncached_tokens * (cached_tokens + uncached_tokens / 2)
        jitter = self.prefill_jitter * random.random() if self.prefill_jitter else 0.0
        return round(self.prefill_base + self.prefill_token * uncached_tokens + self.prefill_pair * pairs + jitter)

    def step_ns(self, context_tokens: int, others: int, random: Random) -> int:
        """One decoding step at this context, with this many other requests running."""
        jitter = self.step_jitter * random.random() if self.step_jitter else 0.0
        return round(self.step + self.step_context_token * context_tokens + self.step_sequence * others + jitter)


def length_probabilities(speculation: Speculation | None, *, is_chat: bool = False) -> tuple[float, ...]:
    """Probabilities of 1, 2, … tokens in a decoding step; of a chat, where the profile tells chats apart.

    Where only the mean is given, each draft is accepted with one probability p if all before it were:
    mean = 1 + p + p² + … + p^drafts, solved by bisection.
    """
    if speculation is None:
        return (1.0,)
    in_chats = speculation.chat_acceptance_length if is_chat else None
    if speculation.lengths is not None and in_chats is None:
        return speculation.lengths
    drafts, wanted = speculation.draft_tokens, in_chats or speculation.acceptance_length or 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if sum(middle**power for power in range(drafts + 1)) < wanted:
            low = middle
        else:
            high = middle
    return (*(high**k - high ** (k + 1) for k in range(drafts)), high**drafts)


def mean_length(probabilities: Sequence[float]) -> float:
    """Mean tokens per decoding step."""
    return sum(length * share for length, share in enumerate(probabilities, start=1))


def draw_lengths(probabilities: Sequence[float], random: Random) -> Iterator[int]:
    """Tokens of step after step, without end.

    Drawn in shuffled decks of 32 quantiles, so that every step has the given distribution and a few decks already
    have its mean.
    """
    if len(probabilities) == 1:
        while True:
            yield 1
    bounds = list(accumulate(probabilities))
    while True:
        offset = random.random()
        deck = [min(bisect_right(bounds, (i + offset) / _DECK), len(bounds) - 1) + 1 for i in range(_DECK)]
        random.shuffle(deck)
        yield from deck


def cut_steps(tokens: int, lengths: Iterator[int]) -> list[int]:
    """The decoding of so many tokens: one from the prefill, then step by step; the last is cut to fit."""
    if tokens == 0:
        return []
    steps, left = [1], tokens - 1
    while left > 0:
        length = min(next(lengths), left)
        steps.append(length)
        left -= length
    return steps
