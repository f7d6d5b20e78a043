import unittest

from gridcalc.graph import Graph
from gridcalc.refs import Range, Ref


def ref(name):
    return Ref.parse(name)


def graph(**formulas):
    made = Graph()
    for name, areas in formulas.items():
        made.set(ref(name), [Range.parse(area) for area in areas.split()])
    return made


def names(refs):
    return sorted(map(str, refs))


class GraphTest(unittest.TestCase):
    def test_readers(self):
        made = graph(C1="A1 B1", C2="A1:B9")
        self.assertEqual(names(made.readers_of(ref("A1"))), ["C1", "C2"])
        self.assertEqual(names(made.readers_of(ref("B9"))), ["C2"])
        self.assertEqual(names(made.readers_of(ref("D1"))), [])

    def test_a_long_column(self):
        made = graph(C1="A1:A48")
        for row in (1, 16, 17, 32, 33, 48):
            with self.subTest(row=row):
                self.assertEqual(names(made.readers_of(Ref(row - 1, 0))), ["C1"])
        self.assertEqual(names(made.readers_of(Ref(48, 0))), [])

    def test_a_very_large_range(self):
        made = graph(A1="B1:ZZ9000")
        self.assertEqual(names(made.readers_of(ref("ZZ9000"))), ["A1"])
        made.set(ref("A1"), [])
        self.assertEqual(names(made.readers_of(ref("ZZ9000"))), [])

    def test_a_new_formula_replaces_the_old(self):
        made = graph(C1="A1")
        made.set(ref("C1"), [Range.parse("B1")])
        self.assertEqual(names(made.readers_of(ref("A1"))), [])
        self.assertEqual(names(made.readers_of(ref("B1"))), ["C1"])

    def test_affected_goes_all_the_way(self):
        made = graph(B1="A1", C1="B1", D1="C1 A1", E1="F1")
        self.assertEqual(names(made.affected([ref("A1")])), ["A1", "B1", "C1", "D1"])

    def test_order(self):
        made = graph(B1="A1", C1="B1", D1="C1 A1")
        order, cyclic = made.ordered(made.affected([ref("A1")]))
        self.assertEqual(list(map(str, order)), ["A1", "B1", "C1", "D1"])
        self.assertEqual(cyclic, set())

    def test_cycles(self):
        made = graph(A1="B1", B1="A1", C1="B1")
        order, cyclic = made.ordered(made.affected([ref("A1")]))
        self.assertEqual(names(cyclic), ["A1", "B1", "C1"])
        self.assertEqual(order, [])
