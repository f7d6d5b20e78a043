"""docs/metrics.md names every field of the `bridge` key, and docs/bridge.md works an example that is true."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from bridging import parts_ms, raw, rows_ms, session_root
from handwritten import Trace, add_call
from test_bridge import two_calls

from agentprof import semconv
from agentprof.analysis.bench import benchmark_of_run
from agentprof.analysis.bridge import build_bridge
from agentprof.analysis.bridge_json import bridge_json
from agentprof.formats.benchmarks import READ_HERE
from agentprof.records.benchmark import FIGURES

DOCS = Path(__file__).parents[2] / "docs"
METRICS = (DOCS / "metrics.md").read_text()
BRIDGE = (DOCS / "bridge.md").read_text()


def names(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from names(inner)


def test_every_name_of_the_bridge_is_documented() -> None:
    trace = Trace()
    root = session_root(trace, 101)
    figures = {
        semconv.PREFILL_NS: 1,
        semconv.QUEUE_NS: 1,
        semconv.GATEWAY_NS: 1,
        semconv.RTT_NS: 1,
        semconv.DECODE_STEPS: 5,
        semconv.DRAFT_TOKENS: 5,
        semconv.ACCEPTED_TOKENS: 5,
    }
    add_call(trace, root, 0, figures, first=60, last=100)
    benchmark = benchmark_of_run({}, [trace.session()])
    found = set(names(bridge_json(build_bridge([trace.session()], benchmark))))
    found |= set(
        names(bridge_json(build_bridge([trace.session()], raw(acceptance_length=benchmark.acceptance_length))))
    )
    assert {"step_time", "benchmark_wait", "gateway", "ttft", "how", *FIGURES} <= found
    assert [name for name in sorted(found) if f"`{name}`" not in METRICS] == []


def test_the_worked_example_is_true() -> None:
    """Its last column against the bridge of the session that it describes."""
    bridge = build_bridge([two_calls().session()], raw())
    computed = [float(value) for value in rows_ms(bridge).values()]
    computed += [float(value) for row in ("first_token_waits", "decode") for value in parts_ms(bridge, row).values()]
    block = BRIDGE.rsplit("```", 2)[1]
    printed = [float(number.replace("−", "-")) for number in re.findall(r"= +(−?\d+\.\d\d)\b", block)]
    assert sorted(printed) == sorted(round(value, 2) for value in computed)


def test_every_file_that_is_read_is_documented() -> None:
    for tool in ("vllm bench serve", "sglang.bench_serving", "guidellm", "aiperf", "llama-bench"):
        assert tool in BRIDGE
        assert any(tool in known for known in READ_HERE)
