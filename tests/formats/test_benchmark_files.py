"""Result files in the exact shape of each tool; figures worked out by hand."""

from __future__ import annotations

import json
import shutil
from fractions import Fraction
from pathlib import Path

import pytest

from agentprof.errors import InputError
from agentprof.formats.benchmarks import read_benchmark, read_benchmarks
from agentprof.records.benchmark import FIGURES, Benchmark
from agentprof.report.benchmark_text import render_benchmark

FIXTURES = Path(__file__).parent / "fixtures"
MS = 1_000_000


def read(name: str) -> Benchmark:
    return read_benchmark(FIXTURES / name)


def changed(tmp_path: Path, name: str, **changes: object) -> Path:
    """A fixture that is one object, with keys replaced; None takes a key away."""
    value = json.loads((FIXTURES / name).read_text())
    value.update(changes)
    path = tmp_path / name
    path.write_text(json.dumps({key: inner for key, inner in value.items() if inner is not None}))
    return path


def test_vllm_gives_the_published_rate_exactly() -> None:
    found = read("vllm-serve.json")
    assert found.tool == "vllm bench serve"
    assert found.model == "qwen3.8-27b"
    assert found.ttft_ns.value == Fraction("324.37") * MS
    assert found.tpot_ns.value == Fraction("4.89") * MS
    assert found.output_length.value == 1024
    assert found.price_ns == (Fraction("324.37") + Fraction("4.89") * 1023) / 1024 * MS
    assert found.call_tok_s == pytest.approx(192.2, abs=0.05)


def test_vllm_percentages_become_shares() -> None:
    found = read("vllm-serve.json")
    assert found.acceptance_rate.value == Fraction("0.9407")
    assert found.acceptance_length.value == Fraction("7.58")
    assert found.hit_rate.provenance == found.seed.provenance == "absent"


def test_vllm_arrays_stand_in_for_summaries_and_failed_requests_are_left_out() -> None:
    """Seconds: waits 0.3, 0.2, 0.4; gaps 0.2, 0.4, 0.2 over 4 + 4 + 4 later tokens."""
    found = read("vllm-serve-detailed.json")
    assert found.ttft_ns.value == 300 * MS
    assert found.ttft_ns.provenance == "derived"
    assert found.tpot_ns.value == Fraction(800, 12) * MS
    assert found.request_latency_ns.value == Fraction(1700, 3) * MS
    assert found.concurrency.value == Fraction(17, 20)
    assert (found.completed.value, found.failed.value) == (3, 1)
    assert "role" in found.ttft_definition


def test_a_file_of_several_results_is_read_by_number() -> None:
    path = FIXTURES / "vllm-serve-appended.jsonl"
    assert [one.concurrency.value for one in read_benchmarks(path)] == [1, 4]
    assert read_benchmark(f"{path}#1").call_tok_s == pytest.approx(18.66, abs=0.01)
    assert read_benchmark(f"{path}#2").tpot_ns.value == 90 * MS
    with pytest.raises(InputError, match=r"holds 2 results: name one of them\. .*#2 \(concurrency 4, 1024 tokens each"):
        read_benchmark(path)
    with pytest.raises(InputError, match="there is no number 3"):
        read_benchmark(f"{path}#3")
    with pytest.raises(InputError, match="there is no number 0"):
        read_benchmark(f"{path}#0")


def test_sglang() -> None:
    found = read("sglang.jsonl")
    assert found.tool == "sglang.bench_serving"
    assert found.price_ns == (10 + 20 * Fraction(99)) / 100 * MS
    assert found.acceptance_length.value == 4
    assert found.cached_tokens.value == 256
    assert found.hit_rate.value == Fraction(1, 4)
    assert found.concurrency.value == 2
    assert found.model == "Qwen/Qwen3.8-27B-NVFP4"
    assert found.failed.provenance == "absent"


def test_guidellm_tpot_leaves_the_first_token_out() -> None:
    found = read("guidellm.json")
    assert found.tpot_ns.value == 30 * MS  # time_per_output_token_ms would say 30.3125
    assert found.ttft_ns.value == 40 * MS
    assert found.request_latency_ns.value == 970 * MS
    assert (found.completed.value, found.failed.value) == (4, 1)
    assert (found.tool_version, found.seed.value, found.model) == ("0.8.1", 42, "smollm2-135m")
    assert found.concurrency.value == 1
    assert found.throughput_tok_s.value == Fraction("32.9")
    assert any("cut off" in caution for caution in found.cautions)


def test_aiperf_units_are_read() -> None:
    found = read("aiperf.json")
    assert found.tpot_ns.value == 30 * MS  # in microseconds there
    assert found.ttft_ns.value == 40 * MS
    assert found.output_tokens.value == 128
    assert (found.tool_version, found.seed.value, found.model) == ("0.13.0", 11, "smollm2-135m")
    assert found.failed.value == 0


def test_aiperf_requests_leave_the_warm_up_out() -> None:
    found = read("aiperf-requests.jsonl")
    assert found.ttft_ns.value == 200 * MS
    assert found.tpot_ns.value == 25 * MS
    assert found.output_length.value == Fraction(67, 2)
    assert (found.completed.value, found.failed.value) == (2, 1)
    assert found.concurrency.value == 1
    assert found.throughput_tok_s.value == Fraction(67, 2)


def test_llama_bench_pairs_prompt_and_generation_rows() -> None:
    found = read("llama-bench.json")
    assert found.tpot_ns.value == 10 * MS
    assert (found.ttft_ns.value, found.ttft_ns.provenance) == (2000 * MS, "estimated")
    assert found.output_length.value == 128
    assert found.price_ns == (2000 + 127 * 10) * MS / Fraction(128)


def test_llama_bench_without_a_prompt_row_has_only_a_rate() -> None:
    found = read("llama-bench.jsonl")  # the prompt row is at another depth
    assert not found.is_split
    assert found.price_ns == Fraction("12.5") * MS
    assert any("no prompt row" in caution for caution in found.cautions)


@pytest.mark.parametrize("name", sorted(path.name for path in FIXTURES.iterdir() if "appended" not in path.name))
def test_names_dont_matter_and_every_figure_says_where_it_comes_from(name: str, tmp_path: Path) -> None:
    path = tmp_path / "results.txt"
    shutil.copy(FIXTURES / name, path)
    found = read_benchmark(path)
    assert found.tool == read(name).tool
    for field in FIGURES:
        figure = getattr(found, field)
        assert (figure.value is None) == (figure.provenance == "absent")
        assert figure.provenance in {"measured", "derived", "estimated", "absent"}
        assert figure.value is None or figure.how
    assert found.ttft_definition


def test_unknown_keys_and_a_byte_order_mark_are_ignored(tmp_path: Path) -> None:
    path = changed(tmp_path, "vllm-serve.json", surprise={"nested": ["NaN"]})
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_benchmark(path).ttft_ns.value == Fraction("324.37") * MS


def test_a_name_that_is_no_text_is_escaped(tmp_path: Path) -> None:
    found = read_benchmark(changed(tmp_path, "vllm-serve.json", model_id="\ud800x"))
    assert found.model == "\\ud800x"
    assert render_benchmark(found).encode()


def test_a_rate_that_its_throughput_contradicts_is_a_caution(tmp_path: Path) -> None:
    as_it_is = read_benchmark(changed(tmp_path, "vllm-serve.json"))
    wrong_unit = read_benchmark(changed(tmp_path, "vllm-serve.json", mean_tpot_ms=0.001))
    assert "Cautions" not in render_benchmark(as_it_is)
    assert "a wrong unit" in " ".join(render_benchmark(wrong_unit).split())


def test_a_median_stands_in_for_a_mean_and_says_so(tmp_path: Path) -> None:
    found = read_benchmark(changed(tmp_path, "vllm-serve.json", mean_ttft_ms=None))
    assert found.ttft_ns.value == Fraction("323.1") * MS
    assert found.ttft_ns.provenance == "estimated"
    assert "median_ttft_ms" in (found.ttft_ns.how or "")


def test_without_ttft_the_throughput_is_the_price(tmp_path: Path) -> None:
    path = changed(tmp_path, "vllm-serve.json", mean_ttft_ms=None, median_ttft_ms=None, max_concurrency=2)
    found = read_benchmark(path)
    assert not found.is_split
    assert found.price_ns == 2 * 10**9 / Fraction("192.36")
    assert found.cautions == (f"{path}: mean_ttft_ms is missing or 0, so waits and decoding can't be parted.",)


def test_replies_that_werent_streamed_have_no_ttft(tmp_path: Path) -> None:
    found = read_benchmark(changed(tmp_path, "vllm-serve.json", mean_ttft_ms=0.0, median_ttft_ms=0.0))
    assert found.ttft_ns.provenance == "absent"


def test_tpot_comes_from_means_where_it_isnt_given(tmp_path: Path) -> None:
    path = changed(tmp_path, "vllm-serve.json", mean_tpot_ms=None, mean_e2el_ms=324.37 + 1023)
    found = read_benchmark(path)
    assert found.tpot_ns.value == pytest.approx(1 * MS)
    assert found.tpot_ns.provenance == "derived"
