"""A block-wise prefix cache with least-recently-used eviction."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

Key = bytes


def block_keys(pieces: Sequence[str], block_tokens: int, salt: str | None = None) -> list[Key]:
    """One key for each whole block; a key stands for the block and all that precedes it, and for the salt."""
    return extend_keys([], pieces, block_tokens, salt)


def extend_keys(
    keys: list[Key], pieces: Sequence[str], block_tokens: int, salt: str | None = None, limit: int | None = None
) -> list[Key]:
    """Append the keys of the whole blocks that `keys` doesn't cover yet, at most `limit` of them; returns `keys`."""
    parent = keys[-1] if keys else blake2b((salt or "").encode("utf-8", "surrogatepass"), digest_size=16).digest()
    last = len(pieces) // block_tokens
    if limit is not None:
        last = min(last, len(keys) + limit)
    for number in range(len(keys), last):
        block = "\x00".join(pieces[number * block_tokens : (number + 1) * block_tokens])
        parent = blake2b(parent + block.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        keys.append(parent)
    return keys


class PrefixCache:
    """Which blocks are held. A prompt finds the longest run of its blocks, always leaving one token to compute."""

    def __init__(self, block_tokens: int, blocks: int) -> None:
        self.block_tokens = block_tokens
        self.blocks = blocks
        self._held: OrderedDict[Key, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def lookup(self, keys: Sequence[Key], prompt_tokens: int) -> int:
        """Tokens of the prompt that are held, in whole blocks and fewer than all; marks them as just used."""
        usable = max(0, prompt_tokens - 1) // self.block_tokens
        found = 0
        for key in keys[:usable]:
            if key not in self._held:
                break
            found += 1
        self._touch(keys[:found])
        return found * self.block_tokens

    def insert(self, keys: Sequence[Key]) -> None:
        """Hold these blocks, the head of the sequence as the most recent, and let the least recent go."""
        kept = keys[: self.blocks]
        for key in kept:
            self._held[key] = None
        self._touch(kept)
        while len(self._held) > self.blocks:
            self._held.popitem(last=False)

    def _touch(self, keys: Sequence[Key]) -> None:
        for key in reversed(keys):
            self._held.move_to_end(key)
