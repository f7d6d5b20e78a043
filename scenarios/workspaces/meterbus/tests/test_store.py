import tempfile
import unittest
from pathlib import Path

from meterbus.store import Reading, Store, StoreError


class StoreTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name, "readings.csv")

    def test_what_was_added_is_loaded(self):
        store = Store(self.path)
        store.add([Reading("2026-03-02", 11, "K3", "energy", 11_011)])
        store.add([Reading("2026-03-03", 11, "K3", "energy", 11_050)])
        self.assertEqual([reading.raw for reading in store.load()], [11_011, 11_050])

    def test_a_bad_line_is_named(self):
        self.path.write_text("day,address,model,name,raw\n2026-03-02,11,K3,energy,much\n")
        with self.assertRaisesRegex(StoreError, "readings.csv:2: '11' or 'much' is not a number"):
            Store(self.path).load()
