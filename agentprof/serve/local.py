"""The embedded engine: llama.cpp's server with a small real model, in a process of its own, on 127.0.0.1."""

from __future__ import annotations

import errno
import http.client
import importlib.util
import json
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self, cast
from urllib.parse import urlsplit

from agentprof.errors import BackendError, InputError
from agentprof.serve.cores import default_threads
from agentprof.serve.weights import find_weights, model_name, tool_template

KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
SPECULATIONS = ("none", "ngram-simple", "ngram-mod", "ngram-cache")
CONTEXT_TOKENS = 8192
"""SmolLM2's context, and the default for each slot."""

_ANSWER_S = _STOP_S = 5
_SPECULATION_TOKENS = {"ngram-simple": (4, 12), "ngram-mod": (8, 16)}  # match, draft
_ERROR_LINE = re.compile(r"^[\d.]+ E (?P<text>.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How to run the engine.

    model: a GGUF file; None takes the installed package's. context_tokens: for each slot, so memory grows with slots.
    match_tokens, draft_tokens: how many tokens an n-gram must match, and how many are drafted at most; None takes 4 and
    12 for ngram-simple, 8 and 16 for ngram-mod; ngram-cache has neither. port: 0 takes a free one. alias: the model's
    name; None takes the file's stem.
    """

    model: Path | None = None
    threads: int = field(default_factory=default_threads)
    slots: int = 1
    context_tokens: int = CONTEXT_TOKENS
    kv_type: str = "f16"
    has_prompt_cache: bool = True
    speculation: str = "none"
    match_tokens: int | None = None
    draft_tokens: int | None = None
    port: int = 0
    alias: str | None = None

    def __post_init__(self) -> None:
        """InputError for a value that llama.cpp would refuse or misread."""
        for name in ("threads", "slots", "context_tokens", "match_tokens", "draft_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"embedded engine: {name} is {value}; it must be at least 1.")
        if self.kv_type not in KV_TYPES:
            raise InputError(f'embedded engine: KV type "{self.kv_type}" is none of {", ".join(KV_TYPES)}.')
        if self.speculation not in SPECULATIONS:
            raise InputError(f'embedded engine: speculation "{self.speculation}" is none of {", ".join(SPECULATIONS)}.')
        if not 0 <= self.port <= 65535:
            raise InputError(f"embedded engine: port {self.port} is not between 0 and 65535.")


class LocalEngine:
    """A running engine. It ends with `stop`, with the `with` block, and with this process, however that ends.

    base_url: ends in /v1. model: the name to ask for. pid: of the engine's process. log: llama.cpp's log, removed at
    the end. context_tokens: of each slot, as llama.cpp settled it: at most what the model was trained on.
    """

    def __init__(self, process: subprocess.Popen[bytes], model: str, log: Path) -> None:
        self.model = model
        self.pid = process.pid
        self.log = log
        self.base_url = ""
        self.context_tokens = 0
        self._process = process

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def first_line(self, timeout_s: float) -> bytes | None:
        """The line that the engine's process writes once it listens; empty when it ended, None when time ran out."""
        pipe = cast("IO[bytes]", self._process.stdout)
        if not select.select([pipe], [], [], max(timeout_s, 0))[0]:
            return None
        return pipe.readline()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Exit code of the engine's process once it has ended; None if it still runs after `timeout_s` seconds."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> None:
        """End the engine's process, requests in flight included, and remove its log. May be called twice."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()  # the end of its stdin is what the engine waits for
        if self.wait(_STOP_S) is None:
            self._process.kill()
            self._process.wait()
        self.log.unlink(missing_ok=True)

    def fault(self) -> str:
        """Why the engine ended or failed: the first error in its log, else how the process ended."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        errors = [" ".join(match["text"].split()) for match in _ERROR_LINE.finditer(text)]
        if errors:
            return errors[0]
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return f"exit code {self._process.poll()}" + (f", after: {lines[-1]}" if lines else "")


def start_engine(options: EngineOptions, *, deadline_s: float = 120) -> LocalEngine:
    """Start the engine and wait until it has completed one real token.

    InputError when xllamacpp or the weights are missing, or the port is taken; BackendError when the engine dies or
    isn't ready after `deadline_s` seconds. Nothing is left running after an error.
    """
    if importlib.util.find_spec("xllamacpp") is None:
        raise InputError("the embedded engine needs xllamacpp: pip install 'agentprof[local]'.")
    end_s = time.monotonic() + deadline_s
    with ExitStack() as stack:
        engine = _spawn(options)
        stack.callback(engine.stop)
        engine.base_url = _listening(engine, options, end_s, deadline_s)
        _complete_one_token(engine, end_s, deadline_s)
        engine.context_tokens = _served_context_tokens(engine)
        stack.pop_all()
    return engine


def _spawn(options: EngineOptions) -> LocalEngine:
    weights = find_weights(options.model)
    match_tokens, draft_tokens = _SPECULATION_TOKENS.get(options.speculation, (None, None))
    model = options.alias or model_name(options.model)
    template = tool_template(weights)
    log_fd, log = tempfile.mkstemp(prefix="agentprof-engine-", suffix=".log")
    order = asdict(options) | {
        "weights": str(weights),
        "model": model,
        "template": template,
        "match_tokens": options.match_tokens or match_tokens,
        "draft_tokens": options.draft_tokens or draft_tokens,
        "log": log,
    }
    with ExitStack() as stack:
        remove_log = stack.enter_context(ExitStack())
        remove_log.callback(Path(log).unlink, missing_ok=True)
        stack.callback(os.close, log_fd)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "agentprof.serve.local_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log_fd,
            bufsize=0,
            start_new_session=True,  # Ctrl-C in the terminal is for this process; it ends the engine itself
        )
        remove_log.pop_all()  # from here on `stop` does it
    with suppress(BrokenPipeError):  # it died at once: reading its first line finds that out, and why
        cast("IO[bytes]", process.stdin).write(json.dumps(order, default=str).encode() + b"\n")
    return LocalEngine(process, model, Path(log))


def _listening(engine: LocalEngine, options: EngineOptions, end_s: float, deadline_s: float) -> str:
    """The base_url that the engine's process tells once llama.cpp listens, before it has proved anything."""
    line = engine.first_line(end_s - time.monotonic())
    if line is None:
        raise BackendError(
            f"embedded engine: {engine.model} isn't loaded after {deadline_s:g} s. Last: {engine.fault()}"
        )
    if line:
        return str(json.loads(line)["base_url"])
    engine.wait()
    fault = engine.fault()
    if "couldn't bind" in fault or _is_taken(options.port):
        raise InputError(f"port {options.port} on 127.0.0.1 is taken. Give --port another number, or 0 for a free one.")
    raise BackendError(f"embedded engine: {engine.model} didn't start: {fault}")


def _is_taken(port: int) -> bool:
    """Whether a port of 127.0.0.1 is in use: llama.cpp's log doesn't always get to say so."""
    if not port:
        return False
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


def _complete_one_token(engine: LocalEngine, end_s: float, deadline_s: float) -> None:
    """Wait until the engine has answered with one token: it listens, and says that it is healthy, before it can."""
    message = {"role": "user", "content": "Hi"}
    body = json.dumps({"model": engine.model, "messages": [message], "max_tokens": 1})
    answer = "no answer"
    while (left_s := end_s - time.monotonic()) > 0:
        try:
            status, answer = _exchange("POST", engine.base_url + "/chat/completions", left_s, body)
        except (OSError, http.client.HTTPException) as error:
            status, answer = 0, str(error) or type(error).__name__
        if status == http.HTTPStatus.OK:
            return
        if engine.wait(0.05) is not None:
            raise BackendError(f"embedded engine: {engine.model} ended while starting: {engine.fault()}")
        if status not in (0, http.HTTPStatus.SERVICE_UNAVAILABLE):
            break
    raise BackendError(f"embedded engine: {engine.model} completed no token within {deadline_s:g} s: {answer[:200]}")


def _served_context_tokens(engine: LocalEngine) -> int:
    _, answer = _exchange("GET", engine.base_url.removesuffix("/v1") + "/props", _ANSWER_S)
    return int(json.loads(answer)["default_generation_settings"]["n_ctx"])


def _exchange(method: str, url: str, timeout_s: float, body: str | None = None) -> tuple[int, str]:
    """Status and text of one request; no proxy of the environment is asked, since the engine is on this machine."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=timeout_s)
    with closing(connection):
        connection.request(method, address.path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read().decode("utf-8", "replace")
