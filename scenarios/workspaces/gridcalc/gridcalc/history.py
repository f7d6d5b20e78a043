"""Undo and redo: what cells held before each change."""

from contextlib import contextmanager

_KEPT = 200


class History:
    """Groups of changes, the newest last. A change is a cell and the text that it held before."""

    def __init__(self):
        self._done = []
        self._undone = []
        self._group = None

    def note(self, ref, text):
        """A cell is about to change; `text` is what it holds now."""
        self._undone.clear()
        if self._group is not None:
            self._group.setdefault(ref, text)
            return
        self._keep({ref: text})

    @contextmanager
    def group(self):
        """Changes noted inside the block are taken back together."""
        if self._group is not None:
            yield
            return
        self._group = {}
        try:
            yield
        finally:
            group, self._group = self._group, None
            if group:
                self._keep(group)

    def undo(self, current):
        """The changes that take back the last group; `current(ref)` gives what a cell holds now."""
        return self._swap(self._done, self._undone, current)

    def redo(self, current):
        """The changes that bring back the group that was taken back last."""
        return self._swap(self._undone, self._done, current)

    def _swap(self, source, target, current):
        if not source:
            return []
        group = source.pop()
        target.append({ref: current(ref) for ref in group})
        return list(group.items())

    def _keep(self, group):
        self._done.append(group)
        del self._done[:-_KEPT]
