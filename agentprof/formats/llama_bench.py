"""`llama-bench -o json` or `-o jsonl`: engine speeds without a server; one row for each test.

A row with `n_gen` = 0 processes a prompt; one with `n_prompt` = 0 generates. Sampling, tokenisation and HTTP are in
neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from agentprof.formats.fields import Fields, mean
from agentprof.records.benchmark import ABSENT, Benchmark, Figure, derived, estimated, first_known, measured

NAME = "llama-bench"
_TTFT = "time to process the prompt row; no HTTP, tokenisation or sampling"
_OF_THE_TEST = frozenset({"n_prompt", "n_gen", "test_time", "avg_ns", "stddev_ns", "avg_ts", "stddev_ts"})
_SAMPLES = ("samples_ns", "samples_ts")


def is_llama_bench(value: Mapping[str, Any]) -> bool:
    """Whether an object is a row of llama-bench."""
    return {"n_prompt", "n_gen", "avg_ts"} <= value.keys()


def read_llama_bench(path: str, rows: Sequence[Fields]) -> tuple[Benchmark, ...]:
    """One benchmark for each row that generates, with the prompt row of the same settings beside it."""
    generating = [row for row in rows if row.count("n_gen") and not row.count("n_prompt")]
    if not generating:
        raise Fields(path, {}).error(
            "n_gen", "no row generates tokens (n_gen above 0, n_prompt 0), so there's no rate."
        )
    return tuple(_read(row, rows) for row in generating)


def _read(row: Fields, rows: Sequence[Fields]) -> Benchmark:
    length = row.count("n_gen") or 0
    speed = row.number("avg_ts")
    if not speed:
        raise row.error("avg_ts", "is missing or 0, so there's no rate.")
    prompts = [other for other in rows if other.count("n_prompt") and not other.count("n_gen") and _same(other, row)]
    ttft = _prompt_time(prompts[0]) if prompts else ABSENT
    tpot = derived(10**9 / speed, "1 / avg_ts")
    samples = row.numbers("samples_ns") or []
    prompt_tokens = prompts[0].count("n_prompt") if prompts else None
    return Benchmark(
        source=row.place,
        tool=NAME,
        ttft_definition=_TTFT,
        output_length=measured(length, "n_gen"),
        ttft_ns=ttft,
        tpot_ns=tpot,
        # The generating row alone, where no prompt row stands beside it: the price is then its rate.
        request_latency_ns=ABSENT if ttft.value is not None else derived(length * 10**9 / speed, "n_gen / avg_ts"),
        throughput_tok_s=measured(speed, "avg_ts"),
        concurrency=measured(1, "one sequence"),
        completed=measured(len(samples) or None, "samples_ns"),
        input_tokens=measured(prompt_tokens, "n_prompt"),
        output_tokens=derived(length * len(samples) or None, "n_gen × samples"),
        tool_version=row.text("build_commit"),
        model=row.text("model_type") or row.text("model_filename"),
        cautions=_cautions(row, prompts),
    )


def _prompt_time(row: Fields) -> Figure:
    tokens, speed = row.count("n_prompt") or 0, row.number("avg_ts")
    samples = mean(row.numbers("samples_ns") or [])
    return first_known(
        estimated(samples, "samples_ns of the prompt row"),
        estimated(Fraction(tokens) * 10**9 / speed if speed else None, "n_prompt / avg_ts of the prompt row"),
    )


def _same(one: Fields, other: Fields) -> bool:
    """Whether two rows differ in nothing but what they test."""
    ignored = _OF_THE_TEST.union(_SAMPLES)
    keys = (one.values.keys() | other.values.keys()) - ignored
    return all(one.values.get(key) == other.values.get(key) for key in keys)


def _cautions(row: Fields, prompts: Sequence[Fields]) -> tuple[str, ...]:
    cautions = [f"{row.place}: llama-bench leaves out sampling, tokenisation and HTTP, so a server is slower than it."]
    if not prompts:
        cautions.append(f"{row.place}: no prompt row (n_gen 0) has the same settings, so there is no TTFT.")
    if len(prompts) > 1:
        cautions.append(
            f"{row.place}: several prompt rows have the same settings; TTFT is that of the first, "
            f"n_prompt {prompts[0].count('n_prompt')}."
        )
    return tuple(cautions)
