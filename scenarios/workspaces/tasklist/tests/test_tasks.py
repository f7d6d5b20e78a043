import contextlib
import io
import tempfile
import unittest
from pathlib import Path

from tasklist.cli import main


class TasksTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name, "tasks.json")

    def run_command(self, *argv):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(main(list(argv), self.path), 0)
        return out.getvalue()

    def test_add_and_list(self):
        self.run_command("add", "water the plants")
        self.run_command("add", "write home")
        self.assertEqual(self.run_command("list"), "1. [ ] water the plants\n2. [ ] write home\n")

    def test_done(self):
        self.run_command("add", "water the plants")
        self.run_command("done", "1")
        self.assertEqual(self.run_command("list"), "1. [x] water the plants\n")

    def test_what_is_no_command(self):
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(main(["dance"], self.path), 2)
