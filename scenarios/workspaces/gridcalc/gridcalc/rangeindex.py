"""Which ranges hold a cell, without looking at all of them.

The sheet is cut into tiles of 16 rows and 8 columns. A range is listed under each tile that it touches; to find the
ranges that hold a cell, only those of its tile are asked. A range that touches very many tiles is kept in a list
of its own, since listing it everywhere would cost more than asking it each time.
"""

TILE_ROWS = 16
TILE_COLUMNS = 8
_MAX_TILES = 512


class RangeIndex:
    """Ranges, each with the cells whose formulas read it."""

    def __init__(self):
        self._tiles = {}
        self._large = {}

    def add(self, area, reader):
        """Note that the formula of `reader` reads `area`."""
        tiles = _tiles_of(area)
        if tiles is None:
            self._large.setdefault(area, set()).add(reader)
            return
        for tile in tiles:
            self._tiles.setdefault(tile, {}).setdefault(area, set()).add(reader)

    def remove(self, area, reader):
        """Forget what `add` noted; nothing happens if it wasn't."""
        tiles = _tiles_of(area)
        if tiles is None:
            _discard(self._large, area, reader)
            return
        for tile in tiles:
            ranges = self._tiles.get(tile)
            if ranges is not None:
                _discard(ranges, area, reader)
                if not ranges:
                    del self._tiles[tile]

    def readers_of(self, ref):
        """The cells whose formulas read a cell."""
        tile = (ref.row // TILE_ROWS, ref.column // TILE_COLUMNS)
        found = set()
        for ranges in (self._tiles.get(tile, {}), self._large):
            for area, readers in ranges.items():
                if ref in area:
                    found |= readers
        return found

    def __len__(self):
        return sum(map(len, self._tiles.values())) + len(self._large)


def _tiles_of(area):
    """The tiles that a range touches; None if they are too many."""
    rows = _span(area.first.row, area.height, TILE_ROWS)
    columns = _span(area.first.column, area.width, TILE_COLUMNS)
    if len(rows) * len(columns) > _MAX_TILES:
        return None
    return [(row, column) for row in rows for column in columns]


def _span(first, length, size):
    """Numbers of the tiles, along one direction, for `length` rows or columns from `first` on."""
    start = first // size
    return range(start, start + (length + size - 1) // size)


def _discard(ranges, area, reader):
    readers = ranges.get(area)
    if readers is not None:
        readers.discard(reader)
        if not readers:
            del ranges[area]
