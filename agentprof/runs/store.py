"""The run folder: what one command produced, safe against being killed at any moment.

FORMAT_VERSION history
  1  run.json, spans.jsonl, chunks.jsonl, content.jsonl as docs/how-it-works.md describes them.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from agentprof import __version__, semconv
from agentprof.errors import InputError, RunError
from agentprof.records.spans import Arrivals, Span, SpanRef
from agentprof.runs.otlp_json import from_traces_data, to_traces_data
from agentprof.runs.secrecy import HIDDEN, real_secrets

FORMAT_VERSION = 1
_RUN, _SPANS, _CHUNKS, _CONTENT = "run.json", "spans.jsonl", "chunks.jsonl", "content.jsonl"


def check_new(folder: Path) -> None:
    """Raises InputError where a run folder can't be made because something is there already."""
    if os.path.lexists(folder):
        raise InputError(f"{folder}: already exists; give another --out, or remove it.")


class RunWriter:
    """Writes a run folder. `facts` become run.json: written first, replaced atomically when they change.

    `secrets`: texts, such as API keys, that never reach the folder, even where a server sent them back.
    """

    def __init__(self, folder: Path, facts: Mapping[str, Any], secrets: Sequence[str] = ()) -> None:
        self.folder = folder
        self.facts = {"format": FORMAT_VERSION, "agentprof_version": __version__, **facts}
        self.spans_written = 0
        self._secrets = [orjson.dumps(text)[1:-1] for text in real_secrets(secrets)]
        self._lock = threading.Lock()
        check_new(folder)
        try:
            folder.mkdir(parents=True)
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
            self._append(_SPANS, [_dump(to_traces_data(spans, resource, __version__))])
            self.spans_written += len(spans)

    def _append(self, name: str, lines: Sequence[bytes]) -> None:
        path = self.folder / name
        data = b"".join(self._without_secrets(line) + b"\n" for line in lines)
        try:
            with path.open("ab", buffering=0) as file:
                start = file.tell()
                if start and _last_byte(path) != b"\n":
                    data = b"\n" + data  # an earlier append was cut short: keep its line apart from ours
                try:
                    _write_whole(file.fileno(), data)
                except OSError:
                    with suppress(OSError):
                        file.truncate(start)  # half a session isn't worth the room that it takes on a full disk
                    raise
        except OSError as error:
            raise RunError(f"{path}: can't write: {error.strerror}. The sessions before it are kept.") from None

    def _write_facts(self) -> None:
        path = self.folder / _RUN
        scratch = path.with_suffix(".tmp")
        try:
            with scratch.open("wb") as file:
                file.write(self._without_secrets(_dump(self.facts, orjson.OPT_INDENT_2)))
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(path)
        except OSError as error:
            scratch.unlink(missing_ok=True)
            raise RunError(f"{path}: can't write: {error.strerror}.") from None

    def _without_secrets(self, data: bytes) -> bytes:
        for secret in self._secrets:
            data = data.replace(secret, HIDDEN.encode())
        return data


def _write_whole(fd: int, data: bytes) -> None:
    written = 0
    while written < len(data):
        written += os.write(fd, data[written:])
    os.fsync(fd)


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1)


def _arrivals_line(arrivals: Arrivals) -> bytes:
    return _dump(
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
    return _dump({"trace": f"{span.trace_id:032x}", "span": f"{span.span_id:016x}", "kind": kind, "content": content})


def _dump(value: Any, option: int = 0) -> bytes:
    """JSON. Halves of surrogate pairs become `?`, since no file can hold them as text."""
    try:
        return orjson.dumps(value, default=_plain, option=option)
    except TypeError:  # orjson takes neither such halves nor whole numbers of more than 64 bits
        return json.dumps(value, default=_plain, ensure_ascii=False).encode(errors="replace")


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (tuple, set, frozenset)):
        return list(value)
    return str(value)


@dataclass(frozen=True, slots=True)
class RunData:
    """A run folder as read: its facts, the spans of its finished sessions, and what was wrong with it.

    `sessions`: how many have a whole line of spans.
    """

    folder: Path
    facts: Mapping[str, Any]
    spans: Sequence[Span]
    problems: Sequence[str] = field(default_factory=tuple)
    sessions: int = 0

    @property
    def unfinished(self) -> int:
        """How many sessions ended otherwise than completed."""
        ends = [span.attributes[semconv.OUTCOME] for span in self.spans if semconv.OUTCOME in span.attributes]
        return sum(end != "completed" for end in ends)


def read_run(folder: Path) -> RunData:
    """Load a run folder. A truncated or corrupt line is skipped and named in `problems`; so are sessions without spans.

    Raises InputError when it is no run folder, or of a format newer than this program's.
    """
    facts = _read_facts(folder)
    spans: list[Span] = []
    problems: list[str] = []
    sessions = 0
    for number, line in _lines(folder / _SPANS):
        try:
            spans.extend(list(from_traces_data(orjson.loads(line))))  # all of a line or nothing
            sessions += 1
        except (ValueError, KeyError, TypeError, AttributeError):
            problems.append(f"{folder / _SPANS}:{number}: not a whole line of spans; that session is left out.")
    missing = _missing_sessions(facts.get("planned"), spans)
    if missing:
        planned = len(facts["planned"])
        problems.append(
            f"{folder}: {sum(map(len, missing.values()))} of {planned} sessions are missing: {_names(missing)}."
        )
    return RunData(folder, facts, spans, problems, sessions)


def _missing_sessions(planned: object, spans: Sequence[Span]) -> dict[tuple[str, str], list[str]]:
    """Planned sessions without a root span, by scenario and backend; nothing where the plan can't be read."""
    there = {
        (
            span.attributes[semconv.SCENARIO],
            span.attributes.get(semconv.BACKEND),
            span.attributes.get(semconv.REPETITION),
            bool(span.attributes.get(semconv.WARMUP)),
        )
        for span in spans
        if semconv.SCENARIO in span.attributes
    }
    missing: dict[tuple[str, str], list[str]] = {}
    for session in planned if isinstance(planned, list) else ():
        if not isinstance(session, dict):
            continue
        scenario, backend, number = (session.get(key) for key in ("scenario", "backend", "repetition"))
        is_warmup = bool(session.get("is_warmup"))
        if (scenario, backend, number, is_warmup) not in there:
            kind = "warm-up" if is_warmup else "repetition"
            missing.setdefault((str(scenario), str(backend)), []).append(f"{kind} {number}")
    return missing


def _names(missing: Mapping[tuple[str, str], Sequence[str]]) -> str:
    return "; ".join(f"{scenario} on {backend}: {', '.join(names)}" for (scenario, backend), names in missing.items())


def _read_facts(folder: Path) -> dict[str, Any]:
    path = folder / _RUN
    try:
        facts = orjson.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{folder}: no run folder: it has no {_RUN}. `agentprof runs` lists runs.") from None
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}.") from None
    except ValueError as error:
        raise InputError(f"{path}: is damaged, so the run can't be read: {error}.") from None
    version = facts.get("format") if isinstance(facts, dict) else None
    if not isinstance(facts, dict) or not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise InputError(f"{path}: has no format version; it wasn't written by agentprof.")
    if version > FORMAT_VERSION:
        raise InputError(f"{path}: format {version} is newer than this agentprof reads ({FORMAT_VERSION}); upgrade it.")
    return facts


def read_arrivals(folder: Path) -> Iterator[dict[str, Any]]:
    """The token arrivals of a run, one attempt each; broken lines are left out."""
    for _, line in _lines(folder / _CHUNKS):
        try:
            entry = orjson.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            yield entry


def list_runs(parent: Path) -> list[Path]:
    """The run folders directly below a folder, oldest first; those whose age can't be read come first, by name."""
    if not parent.is_dir():
        return []
    return sorted(
        (path.parent for path in parent.glob(f"*/{_RUN}")), key=lambda folder: (_created(folder), folder.name)
    )


def _created(folder: Path) -> str:
    try:
        return str(_read_facts(folder).get("created", ""))
    except InputError:
        return ""


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}.") from None
