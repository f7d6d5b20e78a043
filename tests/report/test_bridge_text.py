"""The bridge as people read it: one sentence, rows with shares, what if, cautions."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest

from agentprof import semconv
from agentprof.analysis.bridge import BRIDGE_ROWS, Bridge, build_bridge
from agentprof.analysis.bridge_json import bridge_json
from agentprof.analysis.frames import session_frames
from agentprof.records.benchmark import ABSENT, TTFT_DEFINITION, Benchmark, Spread, measured
from agentprof.records.spans import Span, SpanRef
from agentprof.report.benchmark_text import render_benchmark
from agentprof.report.bridge_text import render_bridge
from agentprof.report.bridge_words import per_token, sentence

MS = 1_000_000


def agent(calls: int = 17, *, tool: int = 2300, name: str = "fix", wait: int = 620, decode: int = 880) -> list[Span]:
    """A session of calls of 160 tokens, each followed by a tool; milliseconds."""
    spans: list[Span] = []

    def add(parent: SpanRef | None, name: str, start: int, end: int, **attributes: Any) -> SpanRef:
        ref = SpanRef(1, len(spans) + 1)
        spans.append(Span(ref, parent, name, start * MS, end * MS, "internal", attributes))
        return ref

    step = wait + decode + tool
    root = add(None, f"invoke_agent {name}", 0, calls * step, **{semconv.OUTCOME: "completed"})
    figures = {semconv.OUTPUT_TOKENS: 160, semconv.FIRST_READ_TOKENS: 1, semconv.TTFT_NS: wait * MS}
    for index in range(calls):
        at = index * step
        chat = add(root, "chat qwen", at, at + wait + decode, **figures)
        add(chat, "first_token_wait", at, at + wait)
        add(chat, "decode", at + wait, at + wait + decode)
        add(root, "execute_tool bash", at + wait + decode, at + step, **{semconv.TOOL_NAME: "bash"})
    return spans


def published(**more: Any) -> Benchmark:
    fields: dict[str, Any] = {
        "source": "vllm-serve.json",
        "tool": "vllm bench serve",
        "ttft_definition": TTFT_DEFINITION,
        "output_length": measured(1024, "x"),
        "ttft_ns": measured(Fraction("324.37") * MS, "mean_ttft_ms"),
        "tpot_ns": measured(Fraction("4.89") * MS, "mean_tpot_ms"),
        "concurrency": measured(1, "x"),
        "hit_rate": measured(0, "x"),
        "model": "qwen",
    }
    return Benchmark(**(fields | more))


def bridge_of(spans: list[Span], benchmark: Benchmark | None = None) -> Bridge:
    return build_bridge(session_frames(spans), benchmark or published())


def test_the_whole_report() -> None:
    """Per token: benchmark 5.20, waits 3.56, decode 0.61, tools 14.38; 3,800 × 17 ms over 2,720 tokens in all."""
    assert render_bridge(bridge_of(agent())).splitlines()[:12] == [
        "The agent gets 42.1 tok/s where the benchmark gets 192. Of the 18.55 ms per token between them,",
        "tools take 78 %, first-token waits 19 %, slower decoding 3 %.",
        "",
        "  fix: 1 session, 2,720 tokens; benchmark: vllm-serve.json",
        "  ms per output token                 share of the gap",
        "  benchmark               5.20  ███▏                    192 tok/s",
        "  first-token waits       3.56  ██▏               19 %  17 calls, not 2.7; each 295.6 ms longer",
        "  decode                  0.61  ▍                  3 %  TPOT 4.89 → 5.53 ms",
        "  tool                   14.38  ████████▌         78 %  bash 100 %",
        "  unattributed            0.00",
        "  agent, in all          23.75  ██████████████          42.1 tok/s",
        "",
    ]


def test_what_if_says_that_it_doesnt_add() -> None:
    text = render_bridge(bridge_of(agent()))
    assert "What if: tools at zero → 107 tok/s · decoding twice as fast → 47.6 tok/s" in text
    assert "they don't add up" in text


def test_rows_can_be_opened() -> None:
    text = render_bridge(bridge_of(agent()), is_open=True)
    lines = {line[2:32].strip(): line for line in text.splitlines() if line.startswith("    ")}
    for name in ("more of them", "each one longer", "speed", "the benchmark's own wait"):
        assert name in lines
    assert "620.0 ms on average" in lines["each one longer"]
    assert "more of them" not in render_bridge(bridge_of(agent()))


def test_a_shorter_wait_is_called_shorter() -> None:
    assert "each one shorter" in render_bridge(bridge_of(agent(wait=100)), is_open=True)


@pytest.mark.parametrize("width", [60, 80, 100, 140])
@pytest.mark.parametrize("is_open", [False, True])
def test_lines_keep_to_the_width_and_need_no_colour(width: int, *, is_open: bool) -> None:
    text = render_bridge(bridge_of(agent(name="a" * 30)), width, is_open=is_open)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "\x1b" not in text
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_no_gap_is_said() -> None:
    bridge = bridge_of(agent(1, tool=0, wait=100, decode=100))
    assert bridge.gap_ns < 0
    assert sentence(bridge).endswith("so there is no gap to explain.")
    assert "%" not in sentence(bridge)
    assert "agent, in all" in render_bridge(bridge)


def test_what_is_won_back_is_said() -> None:
    text = sentence(bridge_of(agent(wait=10, decode=1200, tool=300)))
    assert "is won back elsewhere" in text


def test_an_unsplit_benchmark_says_why_it_has_one_row() -> None:
    text = render_bridge(bridge_of(agent(), published(ttft_ns=ABSENT, throughput_tok_s=measured(192, "x"))))
    assert "generation" in text
    assert "waits and decoding together" in text
    assert "first-token waits" not in text.split("What if")[0]
    assert "waiting and decoding are one row" in " ".join(text.split())


def test_many_scenarios_are_named() -> None:
    bridge = bridge_of([*agent(2), *(_moved(span) for span in agent(3, name="add"))])
    assert "fix, add: 2 sessions, 800 tokens" in render_bridge(bridge)


def _moved(span: Span) -> Span:
    parent = SpanRef(2, span.parent.span_id) if span.parent else None
    ref = SpanRef(2, span.ref.span_id)
    return Span(ref, parent, span.name, span.start_ns + 10**12, span.end_ns + 10**12, span.kind, span.attributes)


@pytest.mark.parametrize(
    ("ns", "expected"),
    [(0, "0.00"), (1, "<0.01"), (-1, "−<0.01"), (5_200_000, "5.20"), (-460_000, "−0.46"), (2_000_000_000, "2,000")],
)
def test_time_per_token(ns: int, expected: str) -> None:
    assert per_token(Fraction(ns)) == expected


def test_the_json_is_plain_and_adds_up() -> None:
    found = json.loads(json.dumps(bridge_json(bridge_of(agent()))))
    assert list(found["rows"]) == list(BRIDGE_ROWS)
    gap = found["agent_ms_per_token"] - found["benchmark_ms_per_token"]
    assert sum(found["rows"].values()) == pytest.approx(gap, rel=1e-12)
    assert sum(found["shares"].values()) == pytest.approx(1)
    assert found["counterfactual_tok_s"]["tool"] == pytest.approx(160_000 / 1500)
    for row in ("first_token_waits", "decode"):
        assert sum(found["splits"][row].values()) == pytest.approx(found["rows"][row])
    assert found["benchmark"]["figures"]["ttft_ns"] == {
        "value": 324_370_000.0,
        "provenance": "measured",
        "how": "mean_ttft_ms",
    }
    assert found["benchmark"]["figures"]["seed"] == {"value": None, "provenance": "absent", "how": None}


def test_a_benchmark_is_printed_with_provenance_and_spread() -> None:
    found = published(
        spreads={
            "decode": Spread(3, 204.0, 1.5, 202.0, 204.0, 206.0),
            "ttft": Spread(1, 300.0, None, 300.0, 300.0, 300.0),
        },
        cautions=("a caution",),
    )
    text = render_benchmark(found)
    assert text.startswith("vllm-serve.json (vllm bench serve, qwen): 192 tok/s for one request.")
    assert "324.37 ms  measured    mean_ttft_ms" in text
    assert "absent" in text
    assert "decode tok/s   204.00  1.50  202.00  204.00  206.00" in text
    assert "–" in text
    assert text.endswith("Cautions:\n  * a caution")
    assert max(len(line) for line in text.splitlines()) <= 100
