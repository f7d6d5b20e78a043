"""Which cells depend on which: what must be computed again after a change, and in which order."""

from gridcalc.rangeindex import RangeIndex


class Graph:
    """Formulas and the ranges that they read."""

    def __init__(self):
        self._reads = {}
        self._index = RangeIndex()

    def set(self, ref, ranges):
        """The formula in `ref` now reads these ranges; none for a cell without a formula."""
        for area in self._reads.pop(ref, ()):
            self._index.remove(area, ref)
        if ranges:
            self._reads[ref] = tuple(dict.fromkeys(ranges))
            for area in self._reads[ref]:
                self._index.add(area, ref)

    def reads(self, ref):
        """The ranges that the formula in a cell reads."""
        return self._reads.get(ref, ())

    def clear(self):
        """Forget everything."""
        self._reads.clear()
        self._index = RangeIndex()

    def readers_of(self, ref):
        """The cells whose formulas read a cell directly."""
        return self._index.readers_of(ref)

    def affected(self, changed):
        """All cells that a change of these cells can reach, the changed ones included."""
        found = set(changed)
        waiting = list(found)
        while waiting:
            for reader in self.readers_of(waiting.pop()):
                if reader not in found:
                    found.add(reader)
                    waiting.append(reader)
        return found

    def ordered(self, cells):
        """Cells in an order in which each comes after those it reads, and the cells that are in a cycle.

        Only the given cells count: what a cell reads outside of them has its value already.
        """
        cells = set(cells)
        readers = {ref: [reader for reader in self.readers_of(ref) if reader in cells] for ref in cells}
        missing = dict.fromkeys(cells, 0)
        for found in readers.values():
            for reader in found:
                missing[reader] += 1
        ready = sorted(ref for ref in cells if not missing[ref])
        order = []
        while ready:
            ref = ready.pop()
            order.append(ref)
            for reader in readers[ref]:
                missing[reader] -= 1
                if not missing[reader]:
                    ready.append(reader)
        return order, cells.difference(order)
