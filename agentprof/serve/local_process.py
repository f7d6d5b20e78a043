"""The embedded engine's own process: `python -m agentprof.serve.local_process`, started by `serve.local`.

stdin: one line of JSON (the options), then silence; its end means that the parent is gone, and ends this process.
stdout: one line of JSON, `{"base_url": …}`, once llama.cpp listens.
stderr: llama.cpp's log.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any

import xllamacpp

HOST = "127.0.0.1"
PROMPT_CACHE_MIB = 1024
"""Most memory for prompts that lost their slot, so that a session that comes back finds its prefix."""

_SPECULATION_TYPES = {
    "none": xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NONE,
    "ngram-simple": xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE,
    "ngram-mod": xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_MOD,
    "ngram-cache": xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_CACHE,
}


def main() -> None:
    """Serve until stdin ends. The exit code is 1 where llama.cpp refuses to start; its log says why."""
    ready_fd = os.dup(1)
    os.dup2(2, 1)  # what llama.cpp prints belongs in the log, not in the ready line
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        order = json.loads(stdin.readline())
    _die_with_parent_while_loading(is_on=True)
    try:
        server = xllamacpp.Server(_parameters(order))
    except RuntimeError as error:
        print(f"0 E {error}", file=sys.stderr, flush=True)
        os._exit(1)
    _die_with_parent_while_loading(is_on=False)
    os.write(ready_fd, json.dumps({"base_url": server.listening_address + "/v1"}).encode() + b"\n")
    os.close(ready_fd)
    while os.read(0, 4096):
        pass
    Path(order["log"]).unlink(missing_ok=True)
    os._exit(0)  # at once: llama.cpp's own shutdown waits for the requests in flight


def _die_with_parent_while_loading(*, is_on: bool) -> None:
    """Let the kernel end this process when stdin closes: loading holds the interpreter, so no thread of ours could.

    The kernel tells of changes only: a parent that went before this call has to be looked for.
    """
    flags = fcntl.fcntl(0, fcntl.F_GETFL)
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, flags | os.O_ASYNC if is_on else flags & ~os.O_ASYNC)
    if is_on and select.select([0], [], [], 0)[0]:  # silent while the parent lives
        os.kill(os.getpid(), signal.SIGIO)


def _parameters(order: dict[str, Any]) -> Any:
    """llama.cpp's parameters for our options."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = order["weights"]
    parameters.model_alias = {order["model"]}
    parameters.hostnames = [HOST]
    parameters.port = order["port"]
    parameters.cors_origins = f"http://{HOST}"  # llama.cpp's default lets any web page read the answers
    parameters.ui = False
    parameters.endpoint_metrics = parameters.endpoint_props = parameters.endpoint_slots = True
    parameters.n_parallel = order["slots"]
    parameters.n_ctx = order["slots"] * order["context_tokens"]  # llama.cpp divides it among the slots
    parameters.kv_unified = False
    parameters.fit_params = False  # the settings asked for, not those that it finds fitting
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = order["threads"]
    kv_type = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{order['kv_type'].upper()}")
    parameters.cache_type_k = parameters.cache_type_v = kv_type
    parameters.cache_prompt = order["has_prompt_cache"]
    parameters.cache_ram_mib = PROMPT_CACHE_MIB if order["has_prompt_cache"] else 0
    parameters.cache_idle_slots = order["has_prompt_cache"]
    if order["slots"] == 1:
        # By default a prompt that shares over half of the slot's tokens (a system prompt and tools) overwrites the rest
        # without saving it: sessions that take turns lose their history. Without the comparison all is saved.
        parameters.slot_prompt_similarity = 0.0
    _set_speculation(parameters.speculative, order)
    parameters.use_jinja = True
    if order["template"] is not None:
        parameters.chat_template = order["template"]
        # Looking for a <think> block would hold back a "<" at the head of an answer: events would be fewer than tokens.
        parameters.reasoning_format = xllamacpp.common_reasoning_format.COMMON_REASONING_FORMAT_NONE
    return parameters


def _set_speculation(speculative: Any, order: dict[str, Any]) -> None:
    speculative.types = [_SPECULATION_TYPES[order["speculation"]]]
    match order["speculation"]:
        case "ngram-simple":
            speculative.ngram_simple.size_n = order["match_tokens"]
            speculative.ngram_simple.size_m = order["draft_tokens"]
        case "ngram-mod":
            speculative.ngram_mod.n_match = order["match_tokens"]
            speculative.ngram_mod.n_max = order["draft_tokens"]
            speculative.ngram_mod.n_min = 0  # its default, 48, exceeds a short draft


if __name__ == "__main__":
    main()
