from __future__ import annotations

import asyncio
import re

import pytest

from agentprof.errors import BackendError
from agentprof.runs.prompts import PromptMaker, find_words


def find(count: object) -> PromptMaker:
    async def counted(text: str) -> int:
        counted.calls += 1  # type: ignore[attr-defined]
        return count(text)  # type: ignore[operator]

    counted.calls = 0  # type: ignore[attr-defined]
    maker = asyncio.run(find_words(counted))
    assert counted.calls < 40  # type: ignore[attr-defined]
    return maker


def long_words_are_two(text: str) -> int:
    """One token a word, two where it has more than five letters; a begin-of-sequence token before them."""
    return 1 + sum(2 if len(word) > 5 else 1 for word in text.split())


def test_only_words_of_one_token_are_kept_and_the_rest_is_counted() -> None:
    maker = find(long_words_are_two)
    assert maker.overhead_tokens == 1
    assert max(len(word) for word in maker.words) <= 5
    assert len(maker.words) >= 64


@pytest.mark.parametrize("tokens", [2, 17, 1024])
def test_prompts_have_the_length_asked_for(tokens: int) -> None:
    maker = find(long_words_are_two)
    assert long_words_are_two(maker.make(tokens, "a")) == tokens


def test_a_template_around_the_prompt_is_part_of_its_length() -> None:
    maker = find(lambda text: 31 + len(text.split()))
    assert maker.overhead_tokens == 31
    assert 31 + len(maker.make(100, 0).split()) == 100


def test_equal_seeds_repeat_a_prompt_and_others_differ_early() -> None:
    maker = find(long_words_are_two)
    assert maker.make(50, (1, 2)) == maker.make(50, (1, 2))
    heads = {maker.make(50, (1, number))[:40] for number in range(20)}
    assert len(heads) == 20


def test_a_tokeniser_by_letters_is_refused_in_one_line() -> None:
    with pytest.raises(BackendError, match="no common word is one token") as error:
        find(lambda text: len(re.sub(r"\s", "", text)) * 2)
    assert "\n" not in str(error.value)
