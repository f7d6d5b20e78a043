"""The simulated server through a raw client: times, cache, queue, shapes on the wire, counters, and its log."""

from __future__ import annotations

import re
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sim_wire import MS, TOOL, ask, chat, connect, get, in_parallel, receive, send, serving


def metric(text: str, name: str, extra: str = "") -> float:
    found = re.search(
        rf'^vllm:{name}\{{engine="0",model_name="simulated"{re.escape(extra)}\}} (\S+)$', text, re.MULTILINE
    )
    assert found, f"{name} is not in\n{text}"
    return float(found[1])


def test_a_stream_and_its_truth_agree(tmp_path: Path) -> None:
    with serving(tmp_path, output={"reasoning_share": 0.5}) as server:
        trace = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
        answer = ask(server, chat(), traceparent=trace, X_Request_Id="mine-1")
        [truth] = server.truth(1)
    assert answer.status == truth.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert (truth.traceparent, truth.request_id, truth.number) == (trace, "mine-1", 1)
    assert answer.events[0]["id"] == "chatcmpl-mine-1"
    assert answer.usage["completion_tokens"] == truth.output_tokens == sum(c.tokens for c in truth.chunks) == 12
    assert answer.usage["prompt_tokens"] == truth.prompt_tokens
    assert (
        answer.usage["completion_tokens_details"]
        == {"reasoning_tokens": truth.reasoning_tokens}
        == {"reasoning_tokens": 6}
    )
    assert len(answer.body) == sum(chunk.size_bytes for chunk in truth.chunks)
    assert "".join(chunk.kind for chunk in truth.chunks) == "o" + "r" * 6 + "c" * 6 + "fud"
    assert len(answer.events) == len(truth.chunks)
    stamps = [truth.received_ns, truth.body_ns, truth.queue_start_ns, truth.queue_end_ns, truth.prefill_end_ns]
    stamps += [
        truth.first_token_ns,
        truth.chunks[0].at_ns,
        truth.last_token_ns,
        truth.chunks[-1].at_ns,
        truth.finish_ns,
    ]
    assert stamps == sorted(stamps)
    assert answer.sent_ns < truth.received_ns
    assert truth.chunks[-1].at_ns < answer.reads[-1][0]


def test_every_chunk_is_received_after_its_stamp_and_soon(tmp_path: Path) -> None:
    with serving(tmp_path, decode={"step": "5ms"}) as server:
        answer = ask(server, chat(max_tokens=40))
        [truth] = server.truth(1)
    ends, total = [], 0
    for chunk in truth.chunks:
        total += chunk.size_bytes
        ends.append(total)
    head = len(answer.raw.split(b"\r\n\r\n", 1)[0]) + 4
    lateness, seen = [], -head
    pending = list(zip(truth.chunks, ends, strict=True))
    for at_ns, data in answer.reads:
        seen += len(data)  # HTTP chunk framing makes this run ahead of the events' own bytes, never behind
        while pending and pending[0][1] <= seen:
            lateness.append(at_ns - pending.pop(0)[0].at_ns)
    assert not pending
    assert sorted(lateness)[len(lateness) // 2] < 20 * MS


def test_times_are_at_least_what_the_profile_says_and_do_not_drift(tmp_path: Path) -> None:
    prefill = {"base": "40ms", "per_token": "1ms"}
    with serving(tmp_path, prefill=prefill, decode={"step": "10ms"}, tail="60ms") as server:
        answer = ask(server, chat(max_tokens=31))
        [truth] = server.truth(1)
    first, last = truth.token_chunks[0].at_ns, truth.token_chunks[-1].at_ns
    wanted = (40 + truth.prompt_tokens) * MS
    assert first - truth.queue_end_ns >= wanted
    assert last - truth.queue_end_ns >= wanted + 300 * MS
    assert last - first < 300 * MS + 500 * MS
    assert truth.chunks[-1].kind == "d"
    assert truth.chunks[-1].at_ns - truth.queue_end_ns >= wanted + 360 * MS
    assert answer.reads[-1][0] - answer.sent_ns >= wanted + 360 * MS


def test_the_time_scale_divides_all_times(tmp_path: Path) -> None:
    profile: dict[str, Any] = {"prefill": {"base": "4s", "per_token": "0ms"}, "decode": {"step": "400ms"}}
    with serving(tmp_path, time_scale=20, tail="2s", inject={"first_token": "2s"}, **profile) as server:
        answer = ask(server, chat(max_tokens=11))
        [truth] = server.truth(1)
    took = answer.reads[-1][0] - answer.sent_ns
    assert 600 * MS <= took < 3000 * MS
    assert truth.injected_ns == 100 * MS


def test_longer_contexts_and_more_company_slow_the_steps(tmp_path: Path) -> None:
    decode = {"step": "1ms", "per_context_token": "0.02ms", "per_sequence": "5ms"}
    with serving(tmp_path, decode=decode) as server:
        alone = ask(server, chat(max_tokens=20))
        long = ask(server, chat("word " * 400, max_tokens=20))
        in_parallel([lambda: ask(server, chat(max_tokens=60))] * 3)
        truths = server.truth(5)
    assert alone.status == long.status == 200
    decodes = [truth.last_token_ns - truth.first_token_ns for truth in truths]
    assert decodes[1] - decodes[0] > 19 * 395 * 20_000 * 0.8
    assert max(decodes[2:]) > 59 * MS + 59 * 5 * MS  # at least one other beside it all along


def test_the_prefix_cache_is_exact(tmp_path: Path) -> None:
    with serving(tmp_path, cache={"block_tokens": 8}, prefill={"base": "1ms", "per_token": "1ms"}) as server:
        text = "Look at the parser. " * 12
        first, again = ask(server, chat(text)), ask(server, chat(text))
        salted = ask(server, chat(text, cache_salt="other"))
        other = ask(server, chat("An" + text))
        truths = server.truth(4)
    tokens = first.usage["prompt_tokens"]
    cached = [answer.usage["prompt_tokens_details"]["cached_tokens"] for answer in (first, again, salted, other)]
    assert cached == [truth.cached_tokens for truth in truths] == [0, (tokens - 1) // 8 * 8, 0, 0]
    prefills = [truth.prefill_end_ns - truth.prefill_start_ns for truth in truths]
    assert prefills[0] >= (1 + tokens) * MS
    assert prefills[1] >= (1 + tokens - cached[1]) * MS
    assert prefills[1] < prefills[0]


def test_a_faithful_history_reuses_what_was_generated(tmp_path: Path) -> None:
    with serving(tmp_path, cache={"block_tokens": 4}, output={"reasoning_share": 0.3, "tokens": 40}) as server:
        body = chat(
            ignore_eos=None, max_tokens=None, stream=False, stream_options=None, tools=[TOOL], tool_choice="required"
        )
        message = ask(server, body).json["choices"][0]["message"]
        assert message["reasoning"]
        assert message["tool_calls"]
        history = [*body["messages"], message, {"role": "tool", "content": "ok", "tool_call_id": "c"}]
        ask(server, body | {"messages": history})
        ask(server, body | {"messages": [*body["messages"], message | {"reasoning": None}, history[-1]]})
        first, echoed, dropped = server.truth(3)
    assert echoed.cached_tokens >= first.prompt_tokens + first.output_tokens - 1 - 4
    assert first.prompt_tokens - 4 <= dropped.cached_tokens < first.prompt_tokens + 4


def test_the_queue_is_first_come_first_served(tmp_path: Path) -> None:
    with serving(tmp_path, slots=1, decode={"step": "10ms"}) as server:
        answers = in_parallel([lambda n=n: ask(server, chat(f"Job {n}", max_tokens=10)) for n in range(4)])
        waiting = get(server, "/metrics")
        truths = sorted(server.truth(4), key=lambda truth: truth.number)
    assert [answer.status for answer in answers] == [200] * 4
    assert waiting.status == 200
    for before, after in pairwise(truths):
        assert after.queue_end_ns > before.queue_end_ns
        assert after.queue_end_ns >= before.queue_end_ns + 92 * MS  # 2 ms of prefill and 9 steps, by the schedule
        assert after.queue_end_ns <= before.last_token_ns
        assert after.queue_end_ns > after.queue_start_ns
    assert truths[0].queue_end_ns == truths[0].queue_start_ns


def test_the_log_is_deterministic_by_seed(tmp_path: Path) -> None:
    profile: dict[str, Any] = {
        "speculation": {"draft_tokens": 4, "acceptance_length": 3},
        "output": {"tokens": [20, 60], "call_probability": 0.5},
        "faults": [{"kind": "http", "rate": 0.3}],
    }

    def run(seed: int) -> list[Any]:
        with serving(tmp_path, seed=seed, **profile) as server:
            bodies = [chat(f"Job {n}", ignore_eos=None, max_tokens=None, tools=[TOOL]) for n in range(8)]
            texts = [re.sub(rb'"created":\d+|_ms":[\d.]+|per_second":[\d.]+', b"", ask(server, b).body) for b in bodies]
            found = [
                (t.status, t.output_tokens, t.decode_steps, t.accepted_draft_tokens, [c.tokens for c in t.chunks])
                for t in server.truth(8)
            ]
        return [texts, found]

    first = run(1)
    assert run(1) == first
    assert run(2) != first
    assert {status for status, *_ in first[1]} == {200, 500}


def test_speculation_is_reported_and_counted(tmp_path: Path) -> None:
    with serving(tmp_path, speculation={"draft_tokens": 7, "acceptance_length": 5}) as server:
        answer = ask(server, chat(max_tokens=200))
        text = get(server, "/metrics").body.decode()
        [truth] = server.truth(1)
    steps = [chunk.tokens for chunk in truth.token_chunks]
    assert steps[0] == 1
    assert len(steps) == truth.decode_steps + 1
    told = answer.events[-2]["metrics"]["speculative_decoding"]
    assert told["num_spec_steps"] == truth.decode_steps
    assert told["num_accepted_draft_tokens"] == sum(steps[1:]) - truth.decode_steps == truth.accepted_draft_tokens
    assert told["num_draft_tokens"] == 7 * truth.decode_steps
    assert told["mean_acceptance_length"] == pytest.approx(199 / truth.decode_steps)
    assert metric(text, "spec_decode_num_drafts_total") == truth.decode_steps
    assert metric(text, "spec_decode_num_accepted_tokens_total") == truth.accepted_draft_tokens
    at_first = metric(text, "spec_decode_num_accepted_tokens_per_pos_total", ',position="0"')
    assert at_first == sum(step > 1 for step in steps[1:])


def test_counters_add_up(tmp_path: Path) -> None:
    with serving(tmp_path, cache={"block_tokens": 4}) as server:
        bodies = [
            chat("Some words to begin with."),
            chat("Some words to begin with."),
            chat(ignore_eos=None, max_tokens=None),
        ]
        answers = [ask(server, body) for body in bodies]
        text = get(server, "/metrics").body.decode()
        truths = server.truth(3)
    assert metric(text, "prompt_tokens_total") == sum(a.usage["prompt_tokens"] for a in answers)
    assert metric(text, "generation_tokens_total") == sum(a.usage["completion_tokens"] for a in answers)
    assert metric(text, "prefix_cache_hits_total") == sum(t.cached_tokens for t in truths) > 0
    assert metric(text, "prefix_cache_queries_total") == sum(t.prompt_tokens for t in truths)
    assert metric(text, "request_success_total", ',finished_reason="length"') == 2
    assert metric(text, "request_success_total", ',finished_reason="stop"') == 1
    assert metric(text, "time_to_first_token_seconds_count") == 3
    ttft = sum(truth.first_token_ns - truth.body_ns for truth in truths) / 1e9
    assert metric(text, "time_to_first_token_seconds_sum") == pytest.approx(ttft)
    decode = sum(truth.last_token_ns - truth.first_token_ns for truth in truths) / 1e9
    assert metric(text, "request_decode_time_seconds_sum") == pytest.approx(decode)
    assert metric(text, "num_requests_running") == 0


def test_vllm_metrics_and_llama_timings_tell_the_truth(tmp_path: Path) -> None:
    with serving(tmp_path, slots=1, decode={"step": "4ms"}) as server:
        answers = in_parallel([lambda: ask(server, chat(max_tokens=20))] * 2)
        truths = sorted(server.truth(2), key=lambda truth: truth.number)
    for answer, truth in zip(answers, truths, strict=True):
        told = answer.events[-2]["metrics"]
        assert told["queue_time_ms"] == pytest.approx((truth.queue_end_ns - truth.queue_start_ns) / MS)
        assert told["time_to_first_token_ms"] == pytest.approx((truth.prefill_end_ns - truth.prefill_start_ns) / MS)
        assert told["generation_time_ms"] == pytest.approx((truth.last_token_ns - truth.first_token_ns) / MS)
    assert answers[1].events[-2]["metrics"]["queue_time_ms"] > 50

    with serving(tmp_path, engine="llama.cpp", cache={"block_tokens": 4}) as server:
        ask(server, chat())
        answer = ask(server, chat(max_tokens=20))
        truth = server.truth(2)[1]
    told = answer.events[-2]["timings"]
    assert (told["cache_n"], told["prompt_n"]) == (truth.cached_tokens, truth.prompt_tokens - truth.cached_tokens)
    assert told["cache_n"] > 0
    assert told["predicted_n"] == 20
    assert told["predicted_ms"] == pytest.approx((truth.last_token_ns - truth.first_token_ns) / MS)
    assert "draft_n" not in told
    assert answer.events[0]["system_fingerprint"] == "b0-simulated"


@pytest.mark.parametrize("style", ["last_chunk", "none"])
def test_reports_can_be_left_out(tmp_path: Path, style: str) -> None:
    with serving(tmp_path, report="none", stream={"usage": style}) as server:
        answer = ask(server, chat())
    assert b"metrics" not in answer.body
    assert (b'"usage"' in answer.body) == (style == "last_chunk")


def test_injected_time_lands_where_it_is_put_and_in_no_report(tmp_path: Path) -> None:
    found, ends = {}, {}
    for name in ("", "first_token", "decode", "tail"):
        with serving(tmp_path, inject={name: "250ms"} if name else {}) as server:
            answer = ask(server, chat(max_tokens=26))
            [truth] = server.truth(1)
        first, last = truth.token_chunks[0].at_ns, truth.token_chunks[-1].at_ns
        found[name] = (first - truth.body_ns, last - first, truth.finish_ns - last)
        ends[name] = last - truth.queue_end_ns
        assert answer.events[-2]["metrics"]["time_to_first_token_ms"] < 240
        assert truth.injected_ns == (250 * MS if name else 0)
    for row, name in enumerate(("first_token", "decode", "tail")):
        moved = [found[name][place] - found[""][place] for place in range(3)]
        assert 150 * MS < moved[row] < 500 * MS
        assert all(abs(moved[place]) < 150 * MS for place in range(3) if place != row)
    assert ends["decode"] >= (250 + 2 + 25) * MS


def test_block_bursts_are_cut_at_their_bytes(tmp_path: Path) -> None:
    with serving(tmp_path, stream={"burst_bytes": 1000}, decode={"step": "20ms"}) as server:
        answer = ask(server, chat(max_tokens=30))
        [truth] = server.truth(1)
    blocks, rest = [], answer.raw.split(b"\r\n\r\n", 1)[1]
    while rest and (size := int(rest.split(b"\r\n", 1)[0], 16)):
        blocks.append(size)
        rest = rest.split(b"\r\n", 1)[1][size + 2 :]
    assert blocks[:-1] == [1000] * (len(blocks) - 1)
    assert len(blocks) > 4
    stamps = sorted({chunk.at_ns for chunk in truth.chunks})
    assert len(stamps) <= len(blocks)
    assert answer.text
    assert answer.usage["completion_tokens"] == 30 == sum(chunk.tokens for chunk in truth.chunks)


def test_token_bursts_and_full_buffering(tmp_path: Path) -> None:
    with serving(tmp_path, stream={"burst_tokens": 10}, decode={"step": "5ms"}) as server:
        ask(server, chat(max_tokens=25))
        [truth] = server.truth(1)
    bursts: dict[int, int] = {}
    for chunk in truth.token_chunks:
        bursts[chunk.at_ns] = bursts.get(chunk.at_ns, 0) + chunk.tokens
    assert list(bursts.values()) == [10, 10, 5]

    with serving(tmp_path, stream={"buffered": True}, decode={"step": "5ms"}) as server:
        answer = ask(server, chat(max_tokens=25))
        [truth] = server.truth(1)
    assert {chunk.at_ns for chunk in truth.chunks} == {truth.chunks[0].at_ns}
    assert truth.chunks[0].at_ns >= truth.last_token_ns > truth.first_token_ns + 60 * MS
    assert answer.usage["completion_tokens"] == 25


def test_keep_alive_comments_fill_the_silence(tmp_path: Path) -> None:
    with serving(tmp_path, stream={"keep_alive": "30ms"}, prefill={"base": "200ms"}, decode={"step": "1ms"}) as server:
        answer = ask(server, chat())
        [truth] = server.truth(1)
    comments = [chunk.at_ns for chunk in truth.chunks if chunk.kind == "k"]
    assert 3 <= len(comments) <= 12
    assert all(after - before >= 30 * MS for before, after in pairwise(comments))
    assert comments[2] < truth.token_chunks[0].at_ns
    assert answer.body.startswith(b": keep-alive\n\n")


def test_without_streaming_the_whole_answer_comes_at_the_end(tmp_path: Path) -> None:
    with serving(tmp_path, output={"reasoning_share": 0.5}, decode={"step": "5ms"}) as server:
        body = chat(stream=False, stream_options=None, max_tokens=20, return_token_ids=True)
        answer = ask(server, body)
        streamed = ask(server, chat(max_tokens=20))
        truth = server.truth(2)[0]
    [choice] = answer.json["choices"]
    assert choice["message"]["content"] == streamed.text
    assert len(choice["token_ids"]) == 20
    assert len(answer.json["prompt_token_ids"]) == answer.json["usage"]["prompt_tokens"]
    assert choice["finish_reason"] == "length"
    assert answer.json["usage"]["completion_tokens"] == 20
    assert answer.json["metrics"]["generation_time_ms"] > 50
    assert answer.reads[0][0] - answer.sent_ns >= 97 * MS
    assert (truth.chunks, truth.is_stream, truth.output_tokens) == ([], False, 20)


def test_text_completions_take_text_and_token_ids(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        body = {"model": "simulated", "prompt": "a b c d", "max_tokens": 8, "ignore_eos": True}
        whole = ask(server, body, path="/v1/completions")
        ids = ask(server, body | {"prompt": list(range(100, 164))}, path="/v1/completions")
        streamed = ask(
            server, body | {"stream": True, "stream_options": {"include_usage": True}}, path="/v1/completions"
        )
    assert whole.json["usage"]["completion_tokens"] == 8
    assert ids.json["usage"]["prompt_tokens"] == 64
    texts = [event["choices"][0]["text"] for event in streamed.events if isinstance(event, dict) and event["choices"]]
    assert "".join(texts) == whole.json["choices"][0]["text"]
    assert streamed.usage["completion_tokens"] == 8


def test_the_tokenizer_counts_as_the_server_does(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        body = chat("How many tokens is this?", tools=[TOOL])
        counted = ask(server, {"messages": body["messages"], "tools": [TOOL]}, path="/tokenize").json
        told = ask(server, body).usage["prompt_tokens"]
        text = ask(server, {"prompt": "Round trip: ünïcode, 12345.\n"}, path="/tokenize").json
        back = ask(server, {"tokens": text["tokens"]}, path="/detokenize").json
        wrong = ask(server, {"tokens": "x"}, path="/detokenize")
    assert counted["count"] == len(counted["tokens"]) == told
    assert back == {"prompt": "Round trip: ünïcode, 12345.\n"}
    assert text["max_model_len"] == 131_072
    assert wrong.status == 400


def test_each_engine_has_its_own_routes(tmp_path: Path) -> None:
    expected = {
        "vllm": {"/version": 200, "/metrics": 200, "/props": 404},
        "llama.cpp": {"/version": 404, "/metrics": 200, "/props": 200},
        "openai": {"/version": 404, "/metrics": 404, "/props": 404},
    }
    for engine, routes in expected.items():
        with serving(tmp_path, engine=engine, context_tokens=4096) as server:
            assert {path: get(server, path).status for path in routes} == routes
            assert get(server, "/health").status == 200
            [model] = get(server, "/v1/models").json["data"]
            assert model["id"] == "simulated"
            assert model.get("max_model_len") == (4096 if engine == "vllm" else None)


def test_a_prompt_beyond_the_context_is_a_400(tmp_path: Path) -> None:
    with serving(tmp_path, context_tokens=100) as server:
        answer = ask(server, chat("word " * 200))
        [truth] = server.truth(1)
    assert answer.status == truth.status == 400
    error = answer.json["error"]
    assert error["message"].startswith("This model's maximum context length is 100 tokens.")
    assert (error["type"], error["code"], error["param"]) == ("BadRequestError", 400, "input_tokens")
    assert ask_bad(tmp_path, b"{nonsense").json["error"]["type"] == "BadRequestError"


def ask_bad(tmp_path: Path, body: bytes) -> Any:
    with serving(tmp_path) as server:
        return ask(server, body)


def test_gateway_time_is_spent_and_told(tmp_path: Path) -> None:
    for header, name in (("litellm", "x-litellm-overhead-duration-ms"), ("server-timing", "server-timing")):
        with serving(tmp_path, gateway={"overhead": "50ms", "header": header}) as server:
            answer = ask(server, chat())
            [truth] = server.truth(1)
        assert answer.headers[name] in ("50.000", "gateway;dur=50.000")
        assert truth.queue_start_ns - truth.body_ns == truth.gateway_ns == 50 * MS
        assert answer.at_ns(b'"content":" ') - answer.sent_ns >= 52 * MS


def test_a_connection_is_kept_until_idle_and_streams_may_close_it(tmp_path: Path) -> None:
    for engine, closes in (("vllm", False), ("llama.cpp", True)):
        with serving(tmp_path, engine=engine, idle_close="600ms") as server, connect(server) as open_socket:
            body = b'{"model":"simulated","messages":[{"role":"user","content":"Hi"}],"stream":true,"max_tokens":2}'
            head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
            start = time.perf_counter_ns()
            open_socket.sendall(head + body)
            answer = receive(open_socket, start)  # reads until the server closes
            took = time.perf_counter_ns() - start
        assert answer.is_whole
        assert took < 550 * MS if closes else took >= 590 * MS


def test_a_client_that_leaves_is_noted_and_frees_its_slot(tmp_path: Path) -> None:
    with serving(tmp_path, slots=1, decode={"step": "10ms"}) as server:
        with connect(server) as open_socket:
            send(open_socket, "POST", "/v1/chat/completions", chat(max_tokens=2000))
            assert open_socket.recv(100)
        after = ask(server, chat())
        left, whole = server.truth(2)
    assert after.usage["completion_tokens"] == 12
    assert left.disconnected_ns > left.first_token_ns
    assert left.output_tokens < 2000
    assert whole.disconnected_ns == 0
    assert whole.queue_end_ns < left.finish_ns + 1000 * MS
