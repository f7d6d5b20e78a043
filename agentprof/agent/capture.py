"""Output in bounded memory: its head, its tail, and its true size."""

from __future__ import annotations

import codecs

_GAP_BYTES = 64  # room for the line that says what was left out


class Capture:
    """Keeps the first and the last `limit_bytes` of what it is fed, and counts all of it."""

    __slots__ = ("_head", "_limit_bytes", "_tail", "size_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self.size_bytes = 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        self.size_bytes += len(data)
        room = self._limit_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
        self._tail += data[-self._limit_bytes :]
        if len(self._tail) > 4 * self._limit_bytes:
            del self._tail[: -self._limit_bytes]

    def text(self, budget_bytes: int) -> tuple[str, bool]:
        """What was fed, in at most `budget_bytes` (up to `limit_bytes`) of UTF-8, and whether it was cut.

        Cut text keeps head and tail, at line ends where there are any, with a line between that counts the bytes left
        out. Bytes that are not UTF-8 become U+FFFD.
        """
        if self.size_bytes <= budget_bytes:
            whole = self._head.decode(errors="replace")
            if len(whole.encode()) <= budget_bytes:
                return whole, False
        side_bytes = max(0, (budget_bytes - _GAP_BYTES) // 2)
        head = _fit_head(bytes(self._head), side_bytes)
        tail = _fit_tail(bytes(self._tail[-self._limit_bytes :]), side_bytes)
        left_out = self.size_bytes - len(head) - len(tail)
        before = _show(head)
        gap = f"[… {left_out} bytes left out …]\n"
        cut = before + ("\n" if before and not before.endswith("\n") else "") + gap + _show(tail)
        return cut.encode()[:budget_bytes].decode(errors="ignore"), True


def bound(text: str, limit_bytes: int) -> tuple[str, bool]:
    """Text in at most `limit_bytes` of UTF-8, cut as `Capture.text` does, and whether it was cut."""
    capture = Capture(limit_bytes)
    capture.feed(text.encode(errors="replace"))
    return capture.text(limit_bytes)


def _show(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _cost_bytes(char: str) -> int:
    """Bytes of a character once shown: one that stands for an undecodable byte becomes U+FFFD, three bytes."""
    return 3 if "\udc80" <= char <= "\udcff" else len(char.encode())


def _fit_head(raw: bytes, budget_bytes: int) -> bytes:
    """The longest start of `raw` whose shown form fits, ending after a line where its second half has a line end."""
    kept = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode(raw[:budget_bytes])
    spent = 0
    for index, char in enumerate(kept):
        spent += _cost_bytes(char)
        if spent > budget_bytes:
            kept = kept[:index]
            break
    end = kept.rfind("\n") + 1
    if end > len(kept) // 2:
        kept = kept[:end]
    return kept.encode(errors="surrogateescape")


def _fit_tail(raw: bytes, budget_bytes: int) -> bytes:
    """The longest end of `raw` whose shown form fits, starting after a line end where its first half has one."""
    piece = raw[max(0, len(raw) - budget_bytes) :]
    start = 0
    while start < min(3, len(piece)) and piece[start] & 0xC0 == 0x80:
        start += 1  # the rest of a character that the cut went through
    kept = piece[start:].decode(errors="surrogateescape")
    spent = 0
    for index in range(len(kept) - 1, -1, -1):
        spent += _cost_bytes(kept[index])
        if spent > budget_bytes:
            kept = kept[index + 1 :]
            break
    end = kept.find("\n") + 1
    if 0 < end <= len(kept) // 2:
        kept = kept[end:]
    return kept.encode(errors="surrogateescape")
