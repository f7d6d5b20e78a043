from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tool_calls import LIMITS

from agentprof.agent.masking import mask
from agentprof.agent.tools import execute
from agentprof.agent.workspace import Workspace, copy_workspace, remove_workspace

PLACE = Workspace(Path("/tmp/agentprof-abcd1234"))


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("rootdir: /tmp/agentprof-abcd1234", "rootdir: /workspace"),
        ("/tmp/agentprof-abcd1234/src/a.py:3: in f", "/workspace/src/a.py:3: in f"),
        ("/tmp/agentprof-abcd1234.tmp/pytest-of-agent/pytest-0", "/tmp/pytest-of-agent/pytest-0"),
        ("AGENTPROF_CALL=/tmp/agentprof-abcd1234#1f3c\n", "AGENTPROF_CALL=/workspace\n"),
        ("3 passed in 0.003s", "3 passed in 0.00s"),
        ("Ran 3 tests in 12.345s", "Ran 3 tests in 0.00s"),
        ("took 1.2 seconds", "took 0.00s"),
        ("12 ms, 3.5µs and 1,234.5 ms", "0.00s, 0.00s and 0.00s"),
        ("1 second", "0.00s"),
        ("best of 5: 20.1 usec per loop", "best of 5: 0.00s per loop"),
        ("real\t0m0.123s\nuser\t1m23.4s", "real\t0.00s\nuser\t0.00s"),
        ("done in 1h 2m 3s.", "done in 0.00s."),
        ("==== 3 passed in 65.32s (0:01:05) ====", "=== 3 passed in 0.00s ==="),
        ("<object at 0x7f3a2b4c5d6e>", "<object at 0x000000000000>"),
        ("a\n[… 123456 bytes left out …]\nb", "a\n[… some bytes left out …]\nb"),
    ],
)
def test_what_differs_between_equal_runs_is_replaced(text: str, masked: str) -> None:
    assert mask(text, PLACE) == masked


@pytest.mark.parametrize(
    "text",
    [
        "",
        "test_2s and v1.2s and x5ms",
        "3 source files, 4 sections, 12 steps, 5 minor",
        "==== test session starts ====",
        "0xFF 0x1F4 year % 400",
        "line 3: 5 m, 2 h, 7 days",
        "12:34:56 2026-01-02 10.0.0.1",
        "/tmp/agentprof-zzzz9999/x",
        "a/5s/b 10s-timeout",
        "trailing newline\n",
        "[stopped at the time limit of 3 s]",
    ],
)
def test_what_does_not_is_left_alone(text: str) -> None:
    assert mask(text, PLACE) == text


@given(st.floats(0, 10_000), st.integers(0, 6), st.sampled_from(["s", " s", "ms", " seconds", " ms", "µs"]))
def test_durations_of_any_length_become_one_text(value: float, digits: int, unit: str) -> None:
    line = f"3 passed in {value:.{digits}f}{unit}"
    assert mask(f"{line:=^80}", PLACE).strip("=") == "3 passed in 0.00s"
    assert mask(line, PLACE) == "3 passed in 0.00s"


@given(st.text(st.sampled_from("0123456789.,: \nmsx=(/-µeh")))
def test_masking_twice_changes_nothing_more(text: str) -> None:
    once = mask(text, PLACE)
    assert mask(once, PLACE) == once


def test_equal_test_runs_give_equal_text(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import time\n\ndef test_good(tmp_path):\n    time.sleep(0.05)\n\n"
        "def test_bad(tmp_path):\n    print(object(), tmp_path, __file__)\n    assert object() is None\n"
    )
    script = "python -m pytest -p no:asyncio -p no:cacheprovider test_it.py -vv"
    texts = []
    for _ in range(2):
        workspace = copy_workspace(tmp_path)
        try:
            result = asyncio.run(execute("bash", {"command": script}, workspace, LIMITS, None))
            texts.append(mask(result.output, workspace))
        finally:
            remove_workspace(workspace)
    assert "1 failed, 1 passed in 0.00s" in texts[0]
    assert "/workspace/test_it.py" in texts[0]
    assert texts[0] == texts[1]
