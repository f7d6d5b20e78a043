"""A tokenizer without a vocabulary file, and the chat template of the simulated model.

Text is cut from left to right into pieces of at most six bytes, so that a token's id is its bytes read as a number:
ids are equal in every process and turn back into text. A cut text keeps the tokens before the cut, and texts that were
tokenised apart can be joined token by token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

_PIECE = re.compile(r" [A-Za-z]{1,5}|[A-Za-z]{1,6}|\d{1,3}| ?[!-/:-@\[-`{-~]{1,2}|[ \t\r\n]{1,6}|.", re.DOTALL)
_FOREIGN = re.compile(r"<\|-?\d+\|>")
_special_ids: dict[int, str] = {}

END = "<|end|>"
ASSISTANT = "<|assistant|>"


@lru_cache(maxsize=1024)
def tokenize(text: str) -> tuple[str, ...]:
    """The pieces of a text; joined, they are the text again."""
    return tuple(_PIECE.findall(text))


def token_id(piece: str) -> int:
    """A piece as a number below 2⁵⁰; template tokens get a hash above those of text."""
    is_template = len(piece) > 4 and piece.startswith("<|")
    if is_template and _FOREIGN.fullmatch(piece):
        return int(piece[2:-2])
    data = piece.encode("utf-8", "surrogatepass")
    if not is_template:
        return int.from_bytes(b"\x01" + data)
    number = int.from_bytes(b"\x02" + blake2b(data, digest_size=6).digest())
    _special_ids[number] = piece
    return number


def piece_of(number: int) -> str:
    """The piece with this id. An id that no text has, as random benchmarks send, stands for itself: `<|7|>`."""
    if number in _special_ids:
        return _special_ids[number]
    data = number.to_bytes(8) if 0 <= number < 1 << 56 else b""
    text = data.lstrip(b"\x00")
    if len(text) > 1 and text[0] == 1:
        piece = text[1:].decode("utf-8", "replace")
        if token_id(piece) == number:
            return piece
    return f"<|{number}|>"


def call_token(name: str) -> str:
    """The template token that opens a call of this tool."""
    return f"<|call:{name}|>"


def render_chat(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> list[str]:
    """The prompt of a conversation in tokens, up to where the assistant speaks.

    Tools stand in the system turn, after its text. Reasoning that is sent back is rendered; it and the text and calls
    of an assistant turn tokenise as they were generated, so that a faithful history finds its cached prefix.
    """
    pieces: list[str] = []
    rest = list(messages)
    if tools:
        leading = rest.pop(0) if rest and rest[0].get("role") in ("system", "developer") else {"content": ""}
        pieces += ["<|system|>", *tokenize(_text(leading.get("content"))), "<|tools|>"]
        for tool in tools:
            pieces += tokenize(json.dumps(tool, ensure_ascii=False))
        pieces.append(END)
    for message in rest:
        pieces.append(f"<|{message.get('role', 'user')}|>")
        pieces += tokenize(_text(message.get("reasoning") or message.get("reasoning_content")))
        pieces += tokenize(_text(message.get("content")))
        for call in message.get("tool_calls") or ():
            function = call.get("function") or {}
            pieces.append(call_token(str(function.get("name"))))
            pieces += tokenize(_text(function.get("arguments")))
        pieces.append(END)
    pieces.append(ASSISTANT)
    return pieces


def _text(content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_text(part.get("text")) if isinstance(part, dict) else _text(part) for part in content)
    return json.dumps(content, ensure_ascii=False)
