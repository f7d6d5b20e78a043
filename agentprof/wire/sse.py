"""Server-sent events, from bytes, without a socket.

Follows the WHATWG event stream format, with four differences that streams of language models need:

* an event that the end of the stream cuts off before its blank line is still given by `close` (the format drops it):
  many servers end with `data: [DONE]` and no blank line;
* an event without data, or one named like a keep-alive, is counted in `comments` and not given;
* lines that are no field at all are counted in `malformed`, and given as one `stray` event per block: an unframed JSON
  error is found there;
* a field named `error` is data of an event named `error` (older llama.cpp servers write it).
"""

from __future__ import annotations

from typing import NamedTuple

STRAY = "stray"
"""Event name of lines that are no field, joined by newlines."""

_KEEP_ALIVE_EVENTS = frozenset({"ping", "heartbeat", "keepalive", "keep-alive"})
_BOM = b"\xef\xbb\xbf"
_LF, _COLON = 0x0A, 0x3A


class SseEvent(NamedTuple):
    """One event. end: body offset just past the line end that completed it (CRLF: past the CR, whatever follows).

    A tuple, as there is one per chunk: a frozen dataclass takes three times as long to make.
    """

    data: bytes
    event: str
    end: int


class SseDecoder:
    """Cuts a byte stream into events; any split of the bytes over `feed` calls gives the same events.

    comments: comment lines and keep-alive events so far. malformed: lines so far that are no field.
    """

    __slots__ = (
        "_after_cr",
        "_data",
        "_event",
        "_has_field",
        "_is_first_line",
        "_last_end",
        "_offset",
        "_pending",
        "_stray",
        "comments",
        "malformed",
    )

    def __init__(self) -> None:
        self.comments = 0
        self.malformed = 0
        self._pending: list[bytes] = []  # the pieces of an unfinished line
        self._offset = 0  # where that line starts in the body
        self._last_end = 0
        self._after_cr = False
        self._is_first_line = True
        self._data: list[bytes] = []
        self._stray: list[bytes] = []
        self._event = ""
        self._has_field = False

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The events that these bytes complete."""
        if self._after_cr and chunk:
            self._after_cr = False
            if chunk[0] == _LF:  # the second half of a CRLF whose first half ended the line
                chunk = chunk[1:]
                self._offset += 1
        if b"\n" not in chunk and b"\r" not in chunk:
            if chunk:
                self._pending.append(chunk)
            return []
        self._pending.append(chunk)
        lines = b"".join(self._pending).splitlines(keepends=True)
        self._pending.clear()
        if lines[-1].endswith(b"\r"):
            self._after_cr = True
        elif not lines[-1].endswith(b"\n"):
            self._pending.append(lines.pop())
        return self._read_lines(lines)

    def close(self) -> list[SseEvent]:
        """The end of the stream: what was left open counts as complete."""
        end = self._last_end
        events: list[SseEvent] = []
        if self._pending:
            line = b"".join(self._pending)
            self._pending.clear()
            end = self._offset + len(line)
            self._offset = end
            self._read_line(line)
        self._dispatch(end, events)
        return events

    def _read_lines(self, lines: list[bytes]) -> list[SseEvent]:
        events: list[SseEvent] = []
        offset = self._offset
        for line in lines:
            content = line.rstrip(b"\r\n")
            end = offset + len(content) + 1
            offset += len(line)
            if content:
                self._read_line(content)
            else:
                self._dispatch(end, events)
            self._last_end = end
        self._offset = offset
        return events

    def _read_line(self, line: bytes) -> None:
        if self._is_first_line:
            self._is_first_line = False
            line = line.removeprefix(_BOM)
            if not line:
                return
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line.startswith(b" ", 5) else line[5:])
            self._has_field = True
            return
        if line[0] == _COLON:
            self.comments += 1
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"data":
                self._data.append(value)
            case b"error":
                self._data.append(value)
                self._event = "error"
            case b"event":
                self._event = value.decode("utf-8", "replace")
            case b"id" | b"retry":
                pass
            case _:
                self.malformed += 1
                self._stray.append(line)
                return
        self._has_field = True

    def _dispatch(self, end: int, events: list[SseEvent]) -> None:
        if self._stray:
            events.append(SseEvent(b"\n".join(self._stray), STRAY, end))
            self._stray.clear()
        if not self._has_field:
            return
        data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        if data.strip() and self._event not in _KEEP_ALIVE_EVENTS:
            events.append(SseEvent(data, self._event, end))
        else:
            self.comments += 1
        self._data.clear()
        self._event = ""
        self._has_field = False
