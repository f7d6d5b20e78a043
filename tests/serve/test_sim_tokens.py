"""The simulated tokenizer: reversible, stable under cuts, and its chat template."""

from __future__ import annotations

import json
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from agentprof.serve.sim.text import draw_arguments, draw_text
from agentprof.serve.sim.tokens import call_token, piece_of, render_chat, token_id, tokenize

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=200) | st.text("ab 1.\n<|>", max_size=60)


@given(TEXTS)
def test_pieces_and_ids_turn_back_into_the_text(text: str) -> None:
    pieces = tokenize(text)
    assert "".join(pieces) == text
    assert "".join(piece_of(token_id(piece)) for piece in pieces) == text


@given(TEXTS, st.data())
def test_a_cut_text_keeps_the_tokens_before_the_cut(text: str, data: st.DataObject) -> None:
    pieces = tokenize(text)
    kept = data.draw(st.integers(0, len(pieces)))
    assert tokenize("".join(pieces[:kept])) == pieces[:kept]


def test_prose_takes_about_four_characters_a_token() -> None:
    text = "The parser accepts 1900 as a leap year; divide by 400 before you trust a century, then run the tests again."
    assert 3 < len(text) / len(tokenize(text)) < 5.5


def test_template_tokens_have_ids_that_no_text_has() -> None:
    ids = [token_id(piece) for piece in ("<|user|>", "<|end|>", call_token("bash"))]
    assert [piece_of(number) for number in ids] == ["<|user|>", "<|end|>", "<|call:bash|>"]
    assert not set(ids) & {token_id(piece) for piece in tokenize("<|user|><|end|><|call:bash|>")}


def test_foreign_token_ids_stand_for_themselves() -> None:
    for number in (0, 7, 151_643, 2**60, -3):
        assert token_id(piece_of(number)) == number


def test_drawn_text_has_its_length_and_tokenises_as_drawn() -> None:
    for tokens in (0, 1, 7, 500, 20_000):
        pieces = draw_text(tokens, Random(tokens))
        assert len(pieces) == tokens
        if tokens <= 500:
            assert list(tokenize("".join(pieces))) == pieces


def test_drawn_text_varies() -> None:
    texts = {"".join(draw_text(40, Random(seed))) for seed in range(40)}
    assert len(texts) > 35
    assert len(set("".join(texts).split())) > 100


def test_a_history_of_what_was_generated_begins_with_the_same_tokens() -> None:
    question = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    answer = {"role": "assistant", "reasoning": " Think.", "content": " Look.", "tool_calls": [call]}
    tools = [{"type": "function", "function": {"name": "bash"}}]
    first = render_chat(question, tools)
    generated = [*tokenize(" Think."), *tokenize(" Look."), call_token("bash"), *tokenize('{"command": "ls"}')]
    second = render_chat([*question, answer, {"role": "tool", "content": "a.py"}], tools)
    assert second[: len(first) + len(generated)] == first + generated
    without = render_chat([*question, answer | {"reasoning": None}, {"role": "tool", "content": "a.py"}], tools)
    assert len(without) == len(second) - len(tokenize(" Think."))


def test_tools_stand_in_the_system_turn_after_its_text() -> None:
    pieces = render_chat([{"role": "system", "content": "A"}, {"role": "user", "content": "B"}], [{"name": "t"}])
    assert pieces[:3] == ["<|system|>", "A", "<|tools|>"]
    assert "".join(pieces[3:]) == '{"name": "t"}<|end|><|user|>B<|end|><|assistant|>'
    alone = render_chat([{"role": "user", "content": [{"type": "text", "text": "B"}]}], [{"name": "t"}])
    assert alone[:2] == ["<|system|>", "<|tools|>"]
    assert alone[-4:] == ["<|user|>", "B", "<|end|>", "<|assistant|>"]


def test_arguments_fit_their_schema() -> None:
    schema = {
        "type": "object",
        "required": ["path", "level", "lines", "flags", "deep", "ratio"],
        "properties": {
            "path": {"type": "string"},
            "level": {"enum": ["low", "high"]},
            "lines": {"type": "integer", "minimum": 3, "maximum": 4},
            "flags": {"type": "array", "items": {"type": "boolean"}},
            "deep": {"type": "object", "properties": {"name": {"type": "string"}}},
            "ratio": {"type": "number"},
            "skipped": {"type": "string"},
        },
    }
    for seed in range(20):
        value = draw_arguments(schema, Random(seed))
        assert json.loads(json.dumps(value)) == value
        assert list(value) == ["path", "level", "lines", "flags", "deep", "ratio"]
        assert value["level"] in ("low", "high")
        assert value["lines"] in (3, 4)
        assert all(isinstance(flag, bool) for flag in value["flags"])
        assert isinstance(value["deep"]["name"], str)
