"""Result files that the tools' own clients wrote beside a real engine, shortened; every figure is copied from the file.

Three requests, one at a time, on a machine with much other load: of 265 prompt tokens and 64 tokens; vLLM's of 137, 32.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from agentprof.formats.benchmarks import read_benchmark, read_benchmarks
from agentprof.records.benchmark import FIGURES, Benchmark

FIXTURES = Path(__file__).parent / "fixtures"
MS = 1_000_000
NAMES = ("real-aiperf.json", "real-aiperf-requests.jsonl", "real-guidellm.json")


def read(name: str) -> Benchmark:
    return read_benchmark(FIXTURES / name)


@pytest.mark.parametrize("name", NAMES)
def test_a_real_file_is_one_benchmark_without_cautions(name: str) -> None:
    (found,) = read_benchmarks(FIXTURES / name)
    assert found.cautions == ()
    assert (found.completed.value, found.failed.value) == (3, 0)
    assert (found.input_tokens.value, found.output_tokens.value, found.output_length.value) == (3 * 265, 192, 64)
    assert (found.cached_tokens.value, found.hit_rate.value) == (0, 0)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_real_file_holds_is_read(name: str) -> None:
    """No more is absent than what the tools don't say of such a server."""
    found = read(name)
    absent = {figure for figure in FIGURES if getattr(found, figure).provenance == "absent"}
    speculation = {"acceptance_rate", "acceptance_length"}
    assert absent == (speculation | {"seed"} if name.endswith(".jsonl") else speculation)


def test_vllm() -> None:
    found = read("real-vllm.json")
    assert found.cautions == ()
    assert found.ttft_ns.value == Fraction("1970.3892826667773") * MS
    assert found.tpot_ns.value == Fraction("47.56267780643983") * MS
    assert found.throughput_tok_s.value == Fraction("9.2801039650974")
    assert (found.completed.value, found.failed.value, found.concurrency.value) == (3, 0, 1)
    assert (found.input_tokens.value, found.output_tokens.value, found.output_length.value) == (3 * 137, 96, 32)
    assert (found.tool, found.model) == ("vllm bench serve", "smollm2-135m")


def test_vllms_arrays_give_its_summary(tmp_path: Path) -> None:
    """Its 33 gaps for 32 tokens count chunks that bring none, so their mean would be 44.7 ms; their sum is right."""
    result = json.loads((FIXTURES / "real-vllm.json").read_text())
    assert [len(gaps) for gaps in result["itls"]] == [33, 33, 33]
    path = tmp_path / "arrays.json"
    path.write_text(json.dumps({key: value for key, value in result.items() if not key.startswith("mean")}))
    found = read_benchmark(path)
    assert (found.ttft_ns.provenance, found.tpot_ns.provenance) == ("derived", "derived")
    assert float(found.price_ns) == pytest.approx(float(read("real-vllm.json").price_ns), rel=1e-9)


def test_vllm_with_a_request_that_failed(tmp_path: Path) -> None:
    """The server closed a pooled connection; the failed request has 0 in the arrays."""
    result = json.loads((FIXTURES / "real-vllm-failed.json").read_text())
    path = tmp_path / "arrays.json"
    path.write_text(json.dumps({key: value for key, value in result.items() if not key.startswith("mean")}))
    found, from_arrays = read("real-vllm-failed.json"), read_benchmark(path)
    assert (found.completed.value, found.failed.value, found.output_tokens.value) == (2, 1, 55)
    assert found.ttft_ns.value == Fraction("2875.703532499756") * MS
    assert from_arrays.ttft_ns.value == (Fraction("3.016509195999788") + Fraction("2.734897868999724")) / 2 * 1000 * MS


def test_aiperf() -> None:
    found = read("real-aiperf.json")
    assert found.ttft_ns.value == Fraction("5716.064589333333") * MS
    assert found.tpot_ns.value == Fraction("90.66562793650793") * MS
    assert found.request_latency_ns.value == Fraction("11427.999149333333") * MS
    assert found.throughput_tok_s.value == Fraction("5.581511905570843")
    assert (found.tool, found.tool_version, found.model) == ("aiperf", "0.13.0", "smollm2-135m")
    assert (found.seed.value, found.concurrency.value) == (1, 1)
    assert "connecting included" in found.ttft_definition


def test_aiperfs_requests_add_up_to_its_summary() -> None:
    found = read("real-aiperf-requests.jsonl")
    assert found.ttft_ns.value == Fraction("4876.211055") * MS / 3 + Fraction("12271.982713") * MS / 3
    assert float(found.tpot_ns.value or 0) == pytest.approx(90.66562793650793 * MS, rel=1e-12)
    assert found.throughput_tok_s.value == Fraction(192 * 10**9, 1796036295069257564 - 1796036260685059259)
    summary = read("real-aiperf.json")
    assert float(found.price_ns) == pytest.approx(float(summary.price_ns), rel=1e-12)


def test_guidellm() -> None:
    found = read("real-guidellm.json")
    assert found.ttft_ns.value == Fraction("8032.678206761678") * MS
    assert found.tpot_ns.value == Fraction("93.09698791100234") * MS
    assert found.request_latency_ns.value == Fraction("13.899163007736204") * 1000 * MS
    assert found.throughput_tok_s.value == Fraction("4.601384745877096")
    assert (found.tool, found.tool_version, found.model) == ("guidellm", "0.8.1", "smollm2-135m")
    assert (found.seed.value, found.concurrency.value) == (1, 1)
    assert "connecting left out" in found.ttft_definition


def test_cached_tokens_of_guidellms_requests_are_added_up(tmp_path: Path) -> None:
    report = json.loads((FIXTURES / "real-guidellm.json").read_text())
    requests = report["benchmarks"][0]["requests"]["successful"]
    requests[1]["cached_tokens"] = 106
    path = tmp_path / "cached.json"
    path.write_text(json.dumps(report))
    assert read_benchmark(path).cached_tokens.value == 106
    assert read_benchmark(path).hit_rate.value == Fraction(106, 795)
    del requests[0]["cached_tokens"]  # it was never told how many, so a share of the others would mislead
    path.write_text(json.dumps(report))
    assert read_benchmark(path).cached_tokens.provenance == "absent"
    assert read_benchmark(path).hit_rate.provenance == "absent"


def test_requests_that_failed_are_what_completed_beyond_the_successful(tmp_path: Path) -> None:
    summary = json.loads((FIXTURES / "real-aiperf.json").read_text())
    summary["completed_request_count"]["avg"] = 5.0
    path = tmp_path / "failed.json"
    path.write_text(json.dumps(summary))
    assert read_benchmark(path).failed.value == 2
