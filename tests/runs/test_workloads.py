from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from agentprof.errors import InputError
from agentprof.runs.workloads import Question, last_number, read_questions

GOOD = '{"question": "How many?", "answer": "6 * 7 = <<6*7=42>>42\\n#### 42"}\n'


def test_questions_are_read_with_their_numbers(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text(GOOD + "\n" + '{"question": "Big?", "answer": "#### 1,250.50"}')
    assert read_questions(file) == [Question("How many?", Decimal(42)), Question("Big?", Decimal("1250.50"))]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GOOD + "{", ":2: not a JSON object"),
        (GOOD + '{"question": "x"}', ':2: not a JSON object with "question" and "answer"'),
        ('{"question": "x", "answer": "forty-two"}', ':1: answer: does not end in "#### NUMBER"'),
        ("[1, 2]", ":1: not a JSON object"),
        ("\n\n", "has no questions"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text(text)
    with pytest.raises(InputError) as error:
        read_questions(file)
    assert str(error.value).startswith(str(file))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't be read"):
        read_questions(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("reply", "number"),
    [
        ("So 3 + 4 = 7.", Decimal(7)),
        ("The total is 1,234", Decimal(1234)),
        ("**-3.50**", Decimal("-3.50")),
        ("Answer: 42.", Decimal(42)),
        ("#### 18", Decimal(18)),
        ("no idea", None),
        ("", None),
    ],
)
def test_the_last_number_of_a_reply_counts(reply: str, number: Decimal | None) -> None:
    assert last_number(reply) == number
