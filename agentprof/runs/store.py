"""The run folder: what one command produced, safe against being killed at any moment.

FORMAT_VERSION history
  1  run.json, spans.jsonl, chunks.jsonl, content.jsonl as docs/how-it-works.md describes them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from agentprof import __version__
from agentprof.errors import InputError, RunError
from agentprof.records.spans import Arrivals, Span, SpanRef
from agentprof.runs.otlp_json import from_traces_data, to_traces_data

FORMAT_VERSION = 1
_RUN, _SPANS, _CHUNKS, _CONTENT = "run.json", "spans.jsonl", "chunks.jsonl", "content.jsonl"


class RunWriter:
    """Writes a run folder. `facts` become run.json: written first, replaced atomically when they change."""

    def __init__(self, folder: Path, facts: Mapping[str, Any]) -> None:
        self.folder = folder
        self.facts = {"format": FORMAT_VERSION, "agentprof_version": __version__, **facts}
        self.spans_written = 0
        self._lock = threading.Lock()
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise InputError(f"{folder}: already exists; give another --out, or remove it.") from None
        except OSError as error:
            raise InputError(f"{folder}: can't make the run folder: {error.strerror}.") from None
        self._write_facts()

    def update(self, **facts: Any) -> None:
        """Add to run.json."""
        self.facts.update(facts)
        self._write_facts()

    def write_session(
        self,
        spans: Sequence[Span],
        arrivals: Sequence[Arrivals],
        contents: Sequence[tuple[SpanRef, str, object]],
        resource: Mapping[str, Any],
    ) -> None:
        """Append one finished session; its span line last, so that a session that has one is whole.

        Raises RunError when the disk is full or the folder is gone.
        """
        with self._lock:
            if contents:
                self._append(_CONTENT, [_content_line(*content) for content in contents])
            self._append(_CHUNKS, [_arrivals_line(entry) for entry in arrivals])
            self._append(_SPANS, [orjson.dumps(to_traces_data(spans, resource, __version__))])
            self.spans_written += len(spans)

    def _append(self, name: str, lines: Sequence[bytes]) -> None:
        path = self.folder / name
        data = b"".join(line + b"\n" for line in lines)
        try:
            with path.open("ab", buffering=0) as file:
                start = file.tell()
                if start and _last_byte(path) != b"\n":
                    data = b"\n" + data  # an earlier append was cut short: keep its line apart from ours
                written = 0
                while written < len(data):
                    written += file.write(data[written:])
                os.fsync(file.fileno())
        except OSError as error:
            raise RunError(f"{path}: can't write: {error.strerror}. The sessions before it are kept.") from None

    def _write_facts(self) -> None:
        path = self.folder / _RUN
        scratch = path.with_suffix(".tmp")
        try:
            with scratch.open("wb") as file:
                file.write(orjson.dumps(self.facts, option=orjson.OPT_INDENT_2))
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(path)
        except OSError as error:
            scratch.unlink(missing_ok=True)
            raise RunError(f"{path}: can't write: {error.strerror}.") from None


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1)


def _arrivals_line(arrivals: Arrivals) -> bytes:
    return orjson.dumps(
        {
            "trace": f"{arrivals.span.trace_id:032x}",
            "span": f"{arrivals.span.span_id:016x}",
            "attempt": arrivals.attempt,
            "at_us": arrivals.at_us,
            "kinds": arrivals.kinds,
            "tokens": arrivals.tokens,
            "reads": arrivals.reads,
        }
    )


def _content_line(span: SpanRef, kind: str, content: object) -> bytes:
    return orjson.dumps(
        {"trace": f"{span.trace_id:032x}", "span": f"{span.span_id:016x}", "kind": kind, "content": content},
        default=_plain,
    )


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (tuple, set, frozenset)):
        return list(value)
    return str(value)


@dataclass(frozen=True, slots=True)
class RunData:
    """A run folder as read: its facts, the spans of its finished sessions, and what was wrong with it."""

    folder: Path
    facts: Mapping[str, Any]
    spans: Sequence[Span]
    problems: Sequence[str] = field(default_factory=tuple)


def read_run(folder: Path) -> RunData:
    """Load a run folder. A truncated or corrupt line is skipped and named in `problems`.

    Raises InputError when it is no run folder, or of a format newer than this program's.
    """
    facts = _read_facts(folder)
    spans: list[Span] = []
    problems: list[str] = []
    sessions = 0
    for number, line in _lines(folder / _SPANS):
        try:
            spans.extend(from_traces_data(orjson.loads(line)))
            sessions += 1
        except (ValueError, KeyError, TypeError, AttributeError):
            problems.append(f"{folder / _SPANS}:{number}: not a whole line of spans; that session is left out.")
    planned = facts.get("planned")
    missing = len(planned) - sessions if isinstance(planned, list) else 0
    if missing > 0:
        problems.append(f"{folder}: {missing} of {len(planned or [])} planned sessions have no spans.")
    return RunData(folder, facts, spans, problems)


def _read_facts(folder: Path) -> Mapping[str, Any]:
    path = folder / _RUN
    try:
        facts = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"{folder}: no run folder: it has no {_RUN}. `agentprof runs` lists runs.") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: can't be read: {error}.") from None
    version = facts.get("format") if isinstance(facts, dict) else None
    if not isinstance(version, int):
        raise InputError(f"{path}: has no format version; it wasn't written by agentprof.")
    if version > FORMAT_VERSION:
        raise InputError(f"{path}: format {version} is newer than this agentprof reads ({FORMAT_VERSION}); upgrade it.")
    return facts if isinstance(facts, dict) else {}


def read_arrivals(folder: Path) -> Iterator[dict[str, Any]]:
    """The token arrivals of a run, one attempt each; broken lines are left out."""
    for _, line in _lines(folder / _CHUNKS):
        try:
            yield orjson.loads(line)
        except ValueError:
            continue


def list_runs(parent: Path) -> list[Path]:
    """The run folders directly below a folder, oldest first by name."""
    if not parent.is_dir():
        return []
    return sorted(path.parent for path in parent.glob(f"*/{_RUN}"))


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, line
