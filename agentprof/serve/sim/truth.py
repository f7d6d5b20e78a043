"""The server's log of what truly happened: one JSON line a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import IO, Any, NamedTuple

import orjson

from agentprof.errors import InputError, RunError
from agentprof.serve.sim.chunks import Frame


class ChunkTruth(NamedTuple):
    """One event as it was sent: stamped just before the write that carried its last byte.

    kind: see docs/simulator.md. tokens: those that it revealed. size_bytes: without HTTP framing.
    """

    at_ns: int
    kind: str
    tokens: int
    size_bytes: int


@dataclass(slots=True)
class RequestTruth:
    """What happened to one request. Stamps are `time.perf_counter_ns`, one clock for all processes of a Linux host.

    0 stands for never reached. The queue's times are those of the schedule, all later ones are real. received_ns: a
    handler has the request's headers. body_ns: it has the body. arrived_ns: the request's last byte came out of the
    socket, before any handler knows. first_token_ns, last_token_ns: a token was made, held back by a buffer or not.
    finish_ns: the last byte was written, or the handler gave up. disconnected_ns: the client was seen to have left.
    injected_ns: what `inject` added. gateway_ns: the gateway's time. client_port: requests that share one share a
    connection.
    """

    number: int
    path: str
    received_ns: int
    request_id: str = ""
    traceparent: str = ""
    client_port: int = 0
    is_stream: bool = False
    status: int = 0
    arrived_ns: int = 0
    body_ns: int = 0
    headers_ns: int = 0
    gateway_ns: int = 0
    queue_start_ns: int = 0
    queue_end_ns: int = 0
    prefill_start_ns: int = 0
    prefill_end_ns: int = 0
    first_token_ns: int = 0
    last_token_ns: int = 0
    finish_ns: int = 0
    disconnected_ns: int = 0
    injected_ns: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    decode_steps: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    finish: str = ""
    fault: str = ""
    chunks: list[ChunkTruth] = field(default_factory=list)

    @property
    def token_chunks(self) -> list[ChunkTruth]:
        """The events that revealed tokens."""
        return [chunk for chunk in self.chunks if chunk.tokens]

    def add(self, at_ns: int, frames: Sequence[Frame]) -> None:
        """Note that these frames went out with one write."""
        self.chunks.extend(ChunkTruth(at_ns, frame.kind, frame.tokens, len(frame.data)) for frame in frames)


class TruthLog:
    """Appends one line per request to a new file; a None path keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self._file: IO[bytes] | None = None
        self._path = path
        self._fault: str | None = None
        self._lost = 0
        if path is not None:
            try:
                self._file = path.open("wb", buffering=0)
            except OSError as error:
                raise InputError(f"{path}: the log can't be written: {error.strerror}. Give another --log.") from None

    def write(self, truth: RequestTruth) -> None:
        """Write a finished request. Once that fails no more are written: `close` tells."""
        if self._fault is not None:
            self._lost += 1
        elif self._file is not None:
            line = {item.name: getattr(truth, item.name) for item in fields(truth) if item.name != "chunks"}
            line["chunks"] = {
                "at_ns": [chunk.at_ns for chunk in truth.chunks],
                "kinds": "".join(chunk.kind for chunk in truth.chunks),
                "tokens": [chunk.tokens for chunk in truth.chunks],
                "bytes": [chunk.size_bytes for chunk in truth.chunks],
            }
            self._append(self._file, orjson.dumps(line) + b"\n")

    def _append(self, file: IO[bytes], line: bytes) -> None:
        try:
            if file.write(line) != len(line):
                self._fault = "no space left"
        except OSError as error:
            self._fault = error.strerror or str(error)
        self._lost += self._fault is not None

    def close(self) -> None:
        """Close the file. Raises RunError where requests are missing in it."""
        if self._file is not None:
            self._file.close()
        if self._fault is not None:
            requests = "1 request is" if self._lost == 1 else f"{self._lost} requests are"
            raise RunError(f"{self._path}: {requests} missing in the log: {self._fault}")


def read_truth(log: Path) -> list[RequestTruth]:
    """The requests of a log in the order in which they ended; a cut last line is left out. Raises InputError."""
    try:
        text = log.read_bytes()
    except OSError as error:
        raise InputError(f"{log}: can't be read: {error.strerror}") from None
    whole = text[: text.rfind(b"\n") + 1]
    try:
        return [_parse(orjson.loads(line)) for line in whole.splitlines()]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise InputError(f"{log}: is not a log of the simulated server: {error}") from None


def _parse(line: dict[str, Any]) -> RequestTruth:
    chunks = line.pop("chunks")
    columns = zip(chunks["at_ns"], chunks["kinds"], chunks["tokens"], chunks["bytes"], strict=True)
    return RequestTruth(**line, chunks=[ChunkTruth(*column) for column in columns])
