"""Files that can't be read: one line each, naming the file and the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentprof.errors import InputError
from agentprof.formats.benchmarks import READ_HERE, read_benchmark

FIXTURES = Path(__file__).parent / "fixtures"


def message(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_benchmark(path)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(str(path))
    return text.removeprefix(str(path))


def written(tmp_path: Path, value: Any) -> Path:
    path = tmp_path / "result"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def loaded(name: str) -> Any:
    text = (FIXTURES / name).read_text()
    return json.loads(text if name.endswith(".json") else text.splitlines()[-1])


def set_at(value: Any, keys: tuple[Any, ...], new: Any) -> Any:
    inner = value
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = new
    return value


ITL = ("benchmarks", 0, "metrics", "inter_token_latency_ms", "successful", "mean")


@pytest.mark.parametrize(
    ("name", "keys", "new", "expected"),
    [
        ("vllm-serve.json", ("mean_ttft_ms",), "324.37", ': mean_ttft_ms: expected a number; found "324.37"'),
        ("vllm-serve.json", ("mean_tpot_ms",), float("nan"), ": mean_tpot_ms: expected a finite number; found nan"),
        ("vllm-serve.json", ("output_throughput",), float("inf"), ": output_throughput: expected a finite number"),
        ("vllm-serve.json", ("mean_ttft_ms",), -3, ": mean_ttft_ms: can't be below zero; found -3"),
        ("vllm-serve.json", ("mean_tpot_ms",), 1e300, ": mean_tpot_ms: expected at most 1e+21; found more"),
        ("vllm-serve.json", ("completed",), True, ": completed: expected a number; found true"),
        ("vllm-serve.json", ("completed",), 2.5, ": completed: expected a whole number; found 2.5"),
        ("vllm-serve.json", ("completed",), 0, ": completed: 0 requests succeeded"),
        ("vllm-serve.json", ("total_output_tokens",), 0, ": total_output_tokens: 0 tokens came"),
        ("vllm-serve-detailed.json", ("ttfts", 2), "soon", ': ttfts[2]: expected a number; found "soon"'),
        ("vllm-serve-detailed.json", ("itls", 0), 1.0, ": itls[0]: expected a list; found the number 1.0"),
        ("vllm-serve-detailed.json", ("itls", 2, 1), -1, ": itls[2][1]: can't be below zero"),
        ("vllm-serve-detailed.json", ("ttfts",), "none", ': ttfts: expected a list; found "none"'),
        ("sglang.jsonl", ("mean_tpot_ms",), [20], ": mean_tpot_ms: expected a number; found a list"),
        ("sglang.jsonl", ("completed",), 0, ": completed: 0 requests succeeded"),
        ("sglang.jsonl", ("cache_report",), 5, ": cache_report: expected an object; found the number 5"),
        (
            "guidellm.json",
            ITL,
            "30",
            ": benchmarks[0].metrics.inter_token_latency_ms.successful.mean: expected a number",
        ),
        ("guidellm.json", ("benchmarks",), [], ": benchmarks: is empty"),
        ("guidellm.json", ("metadata", "version"), 3, ": metadata.version: expected 1 or 2; found 3"),
        ("guidellm.json", ("benchmarks", 0), "x", ": benchmarks[0]: expected an object"),
        (
            "guidellm.json",
            ("benchmarks", 0, "metrics", "request_totals", "successful"),
            0,
            ": benchmarks[0].metrics.request_totals.successful: 0 requests succeeded",
        ),
        ("aiperf.json", ("request_count", "avg"), 0, ": request_count.avg: 0 requests succeeded"),
        (
            "aiperf.json",
            ("time_to_first_token", "unit"),
            "fortnights",
            ': time_to_first_token.unit: "fortnights" is not',
        ),
        ("aiperf.json", ("time_to_first_token", "avg"), -1, ": time_to_first_token.avg: can't be below zero"),
        ("aiperf.json", ("output_sequence_length",), None, ": output_sequence_length.avg: is missing or 0"),
        ("llama-bench.json", (1, "avg_ts"), 0, ": [1].avg_ts: is missing or 0"),
        ("llama-bench.json", (1, "n_gen"), 0, ": n_gen: no row generates tokens"),
        ("llama-bench.json", (1, "avg_ts"), "fast", ': [1].avg_ts: expected a number; found "fast"'),
    ],
)
def test_a_bad_field_is_named(tmp_path: Path, name: str, keys: tuple[Any, ...], new: Any, expected: str) -> None:
    text = message(written(tmp_path, set_at(loaded(name), keys, new)))
    assert text.startswith(expected), text


@pytest.mark.parametrize("name", ["vllm-serve.json", "guidellm.json", "aiperf.json", "llama-bench.json"])
def test_a_file_that_is_cut_off_says_where(tmp_path: Path, name: str) -> None:
    text = (FIXTURES / name).read_text()
    path = written(tmp_path, text[: len(text) * 2 // 3])
    assert "is not whole JSON" in message(path)


def test_a_line_that_is_cut_off_is_named(tmp_path: Path) -> None:
    text = (FIXTURES / "vllm-serve-appended.jsonl").read_text()
    assert message(written(tmp_path, text[:-30])).startswith(":2: is not a whole JSON object")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", ": is empty."),
        (" \n\n", ": is empty."),
        ("model,tok/s\nqwen,192\n", ": is not JSON."),
        ("[]", ": is no benchmark result"),
        ("7", ": is no benchmark result"),
        (
            '{"avg_latency": 1.5, "latencies": [1.5]}',
            ": is no benchmark result that is known here. Its keys begin with avg",
        ),
        ('{"elapsed_time": 3.0, "tokens_per_second": 100}', ": is no benchmark result"),
        ('[{"role": "user"}]', ": is no benchmark result"),
        ("[" * 100_000, ": is not"),
    ],
)
def test_what_isnt_a_known_result_is_refused_with_a_list(tmp_path: Path, content: str, expected: str) -> None:
    text = message(written(tmp_path, content))
    assert text.startswith(expected), text[:200]


def test_the_list_names_every_tool(tmp_path: Path) -> None:
    text = message(written(tmp_path, "{}"))
    assert all(tool in text for tool in READ_HERE)
    for tool in ("vllm bench serve", "sglang.bench_serving", "guidellm", "aiperf", "llama-bench"):
        assert tool in text


def test_files_that_arent_there_or_arent_text(tmp_path: Path) -> None:
    assert message(tmp_path / "nowhere.json") == ": no such file."
    assert message(tmp_path).startswith(": is a folder")
    binary = tmp_path / "weights.gguf"
    binary.write_bytes(b"GGUF\xff\xfe\x00")
    assert message(binary).startswith(": is not text")


def test_lines_of_two_tools_are_refused(tmp_path: Path) -> None:
    lines = (FIXTURES / "sglang.jsonl").read_text() + json.dumps(loaded("vllm-serve.json"))
    assert message(written(tmp_path, lines)) == ":2: is not of the same tool as the first line."


def test_all_requests_failed(tmp_path: Path) -> None:
    lines = (FIXTURES / "aiperf-requests.jsonl").read_text().splitlines()
    assert message(written(tmp_path, lines[-1])).startswith(": metrics: 0 requests succeeded")


def test_a_result_without_any_speed_is_refused(tmp_path: Path) -> None:
    value = loaded("vllm-serve.json")
    speeds = ("mean_ttft_ms", "median_ttft_ms", "output_throughput", "duration")
    for key in speeds:
        value[key] = None
    text = message(written(tmp_path, value))
    assert "says nothing about speed" in text
    assert "mean_ttft_ms" in text
