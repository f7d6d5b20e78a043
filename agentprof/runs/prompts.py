"""Prompts of an exact length in tokens, each different, for benchmarks.

Words that are one token each are found once per server, by its own tokeniser or by the prompt tokens that it reports.
Any n of them make a prompt of n tokens and a fixed rest (begin-of-sequence, chat template), so that no prompt has to
be sent, and cached, before it is measured.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from agentprof.errors import BackendError

Count = Callable[[str], Awaitable[int]]
"""Tokens of a prompt as the server counts them, whatever it adds included."""

_CANDIDATES = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body information "
    "back parent face others level office door health person art war history party result change morning reason "
    "research girl guy moment air teacher force education foot boy age policy music market sense nation plan college "
    "interest death experience effect use class control field development role effort rate heart drug show leader "
    "light voice wife police mind price report decision son view relationship town road arm difference value building "
    "action model season society tax director position player record paper space ground form event official matter"
)
_GROUP, _MIN_WORDS, _ENOUGH_WORDS = 16, 16, 64


@dataclass(frozen=True, slots=True)
class PromptMaker:
    """Makes prompts. words: one token each, after a space. overhead_tokens: what the server adds to any prompt."""

    words: Sequence[str]
    overhead_tokens: int

    def make(self, tokens: int, seed: object) -> str:
        """A prompt that the server counts as `tokens`, at least one word; equal seeds give equal prompts."""
        chance = random.Random(repr(seed))  # noqa: S311  no secret
        return " " + " ".join(chance.choices(self.words, k=max(1, tokens - self.overhead_tokens)))


async def find_words(count: Count) -> PromptMaker:
    """Find enough words that this server's tokeniser takes as one token each; the shortest candidates come first.

    Raises BackendError when hardly any of the candidates is, which no tokeniser for English does.
    """
    words = sorted(_CANDIDATES.split(), key=lambda word: (len(word), word))
    overhead = await _overhead(count, words)
    single: list[str] = []
    for start in range(0, len(words), _GROUP):
        single += await _single_tokens(count, words[start : start + _GROUP], overhead)
        if len(single) >= _ENOUGH_WORDS:
            break
    if len(single) < _MIN_WORDS:
        raise BackendError(
            f"only {len(single)} of {len(words)} common words are one token each for this server; "
            "an exact prompt length can't be made for its tokeniser."
        )
    return PromptMaker(tuple(single), overhead)


async def _overhead(count: Count, words: Sequence[str]) -> int:
    """Tokens that the server adds to any prompt, from the first word of which four more are four tokens more."""
    for word in words[:_MIN_WORDS]:
        four, eight = await count(f" {word}" * 4), await count(f" {word}" * 8)
        if eight - four == 4:
            return four - 4
    raise BackendError("no common word is one token for this server; an exact prompt length can't be made.")


async def _single_tokens(count: Count, words: Sequence[str], overhead: int) -> list[str]:
    """The words that are one token each: all of a list that has as many tokens as words, else those of its halves."""
    if await count(" " + " ".join(words)) - overhead == len(words):
        return list(words)
    if len(words) == 1:
        return []
    half = len(words) // 2
    return [*await _single_tokens(count, words[:half], overhead), *await _single_tokens(count, words[half:], overhead)]
