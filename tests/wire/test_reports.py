"""Token counts folded over a stream."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentprof.records.call import Usage
from agentprof.wire.reports import UsageReader


def folded(*raws: dict[str, Any]) -> Usage:
    reader = UsageReader()
    for raw in raws:
        reader.read(raw)
    return reader.usage(None)


def usage(output: Any, **others: Any) -> dict[str, Any]:
    return {"completion_tokens": output, **others}


def test_the_last_of_each_count_stands_though_it_was_there_before():
    first, second = {"prompt_tokens": 10, "cached_tokens": 4}, {"prompt_tokens": 12, "cached_tokens": None}
    assert folded(usage(1, **first), usage(2, **second), usage(3, **first)) == Usage(10, 3, 4, None)
    assert folded(usage(1, **first), usage(2, **first), usage(3, **second)) == Usage(12, 3, 4, None)


def test_a_truth_value_is_no_count_though_it_equals_one():
    assert folded(usage(1, prompt_tokens=True), usage(2, prompt_tokens=1)) == Usage(1, 2, None, None)
    assert folded(usage(1, reasoning_tokens=False), usage(2, reasoning_tokens=0)) == Usage(None, 2, None, 0)


def test_nesting_never_raises():
    deep: dict[str, Any] = {}
    for _ in range(3000):
        deep = {"a": deep}
    assert folded(usage(1, x=deep), usage(2, x=deep)).output_tokens == 2


@pytest.mark.parametrize("missing", [None, -1, "7", True, 1.5])
def test_a_count_that_is_none_changes_nothing(missing):
    assert folded(usage(5, prompt_tokens=10), usage(missing, prompt_tokens=10)) == Usage(10, 5, None, None)


@pytest.mark.parametrize("key", ["cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens"])
def test_each_name_of_the_cached_tokens(key):
    assert folded({"prompt_tokens": 9, key: 4}).cached_tokens == 4


def test_whole_numbers_written_as_floats():
    assert folded({"prompt_tokens": 9.0, "completion_tokens": 7.0}) == Usage(9, 7)


def test_both_names_of_the_output_tokens():
    assert folded(usage(5, output_tokens=9), {"output_tokens": 6}).output_tokens == 6


counts = st.one_of(st.none(), st.booleans(), st.integers(-1, 3))
details = st.one_of(counts, st.fixed_dictionaries({}, optional={"cached_tokens": counts, "reasoning_tokens": counts}))
objects = st.fixed_dictionaries(
    {},
    optional={
        "completion_tokens": counts,
        "output_tokens": counts,
        "prompt_tokens": counts,
        "total_tokens": counts,
        "cached_tokens": counts,
        "prompt_tokens_details": details,
        "completion_tokens_details": details,
    },
)


@given(st.lists(objects, max_size=6))
def test_the_fold_is_that_of_each_object_read_afresh(raws):
    reader, last = UsageReader(), Usage()
    for raw in raws:
        alone = UsageReader()
        assert reader.read(raw) == alone.read(raw)
        read = alone.usage(None)
        last = Usage(*(new if new is not None else old for new, old in zip(values(read), values(last), strict=True)))
        assert reader.usage(None) == last


def values(usage: Usage) -> tuple[int | None, ...]:
    return usage.prompt_tokens, usage.output_tokens, usage.cached_tokens, usage.reasoning_tokens
