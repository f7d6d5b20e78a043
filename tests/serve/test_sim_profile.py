"""Profiles: what is written is what is simulated, and what is wrong is said with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentprof.errors import InputError
from agentprof.serve.sim.profile import Profile, load_profile

EXAMPLES = sorted((Path(__file__).parents[2] / "scenarios" / "backends").glob("*.yaml"))


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "profile.yaml"
    path.write_text(text)
    return path


def test_every_key_has_a_default(tmp_path: Path) -> None:
    assert load_profile(write(tmp_path, "name: plain\n")) == Profile(name="plain")


def test_a_profile_survives_the_way_to_its_server_process() -> None:
    written = {
        "prefill": {"base": "1.000001ms", "per_token": "0.277ms"},
        "decode": {"tpot": "4.89ms"},
        "speculation": {"draft_tokens": 2, "lengths": [0.5, 0.25, 0.25]},
        "output": {"tokens": [10, 20]},
        "replies": [{"turn": 0, "text": "Look.", "calls": [{"bash": {"command": "ls"}}]}],
        "stream": {"keep_alive": "15s", "burst_bytes": 4096},
        "faults": [{"kind": "http", "status": 429, "retry_after": 2, "first": 1}],
        "gateway": {"overhead": "12ms"},
        "tls": {"cert": "c.pem", "key": "k.pem", "handshake_delay": "200ms"},
    }
    profile = Profile.model_validate(written)
    assert profile.prefill.base == 1_000_001
    assert profile.faults[0].retry_after == "2"
    again = Profile.model_validate(json.loads(json.dumps(profile.model_dump(mode="json", exclude_unset=True))))
    assert again == profile


def test_the_engine_decides_what_is_not_written() -> None:
    llama = Profile.model_validate({"engine": "llama.cpp"})
    assert (llama.report_style, llama.reasoning_field, llama.closes_streams) == ("timings", "reasoning_content", True)
    vllm = Profile()
    assert (vllm.report_style, vllm.reasoning_field, vllm.closes_streams) == ("metrics", "reasoning", False)
    own = Profile.model_validate({"engine": "llama.cpp", "report": "none", "stream": {"close": False}})
    assert (own.report_style, own.closes_streams) == ("none", False)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("name: x\nprefil:\n  base: 1ms\n", 2, 'Did you mean "prefill"?'),
        ("decode:\n  stp: 4ms\n", 2, 'decode: "stp" is not a key here. Keys: step'),
        ("decode: {step: 5ms, tpot: 5ms}\n", 1, "write one of them"),
        ("prefill:\n  base: 30\n", 2, "30 is not a duration"),
        ("stream:\n  usage: sometimes\n", 2, '"sometimes" is not one of: requested'),
        ("stream: {buffered: true, burst_bytes: 10}\n", 1, "one of buffered, burst_bytes and burst_tokens"),
        ("speculation: {draft_tokens: 3}\n", 1, "one of acceptance_length and lengths"),
        ("speculation: {draft_tokens: 3, acceptance_length: 5}\n", 1, "more than draft_tokens + 1"),
        (
            "speculation: {draft_tokens: 3, acceptance_length: 2, chat_acceptance_length: 4.5}\n",
            1,
            "chat_acceptance_length 4.5 is more than draft_tokens + 1",
        ),
        ("speculation: {draft_tokens: 2, lengths: [0.5, 0.5]}\n", 1, "2 probabilities"),
        ("speculation: {draft_tokens: 1, lengths: [0.5, 0.4]}\n", 1, "add up to 0.9"),
        ("output:\n  tokens: [20, 10]\n", 2, "20 is more than 10"),
        (
            "output:\n  tokens: lots\n",
            2,
            'output.tokens: expected a whole number, or two such as [80, 400]; found "lots"',
        ),
        (
            "output:\n  tokens: [1, 2, 3]\n",
            2,
            "output.tokens: expected a whole number, or two such as [80, 400]; found a list",
        ),
        ("output: {tokens: 0}\n", 1, "output.tokens: must be at least 1; found 0"),
        ("output: {tokens: [1, x]}\n", 1, 'output.tokens: expected a whole number; found "x"'),
        ("faults:\n  - kind: drop\n", 2, "rate, requests, first and until"),
        ("faults:\n  - {kind: explode, rate: 1}\n", 2, '"explode" is not one of'),
        ("replies:\n  - when: '('\n", 2, "not a regular expression"),
        ("slots: 0\n", 1, "must be at least 1"),
        ("name: x\n  slots: 1\n", 2, "not YAML"),
        ("- a\n", 1, "found a list"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(tmp_path: Path, text: str, line: int, words: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load_profile(path)
    message = str(caught.value).splitlines()[0]
    assert message.startswith(f"{path}:{line}: ")
    assert words in message


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        load_profile(tmp_path / "none.yaml")


def test_tls_files_lie_beside_the_profile(tmp_path: Path) -> None:
    profile = load_profile(write(tmp_path, "tls: {cert: c.pem, key: /etc/k.pem}\n"))
    assert profile.tls is not None
    assert profile.tls.cert == tmp_path.resolve() / "c.pem"
    assert profile.tls.key == Path("/etc/k.pem")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_load(path: Path) -> None:
    assert load_profile(path).name == path.stem


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 10
