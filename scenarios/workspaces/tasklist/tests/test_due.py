import datetime

from tasklist.dates import parse_due
from tests import test_tasks

TODAY = datetime.date(2026, 3, 31)


class DueTest(test_tasks.TasksTest):
    def test_parse(self):
        self.assertEqual(parse_due("2026-04-05", TODAY), "2026-04-05")
        self.assertEqual(parse_due("tomorrow", TODAY), "2026-04-01")
        self.assertRaises(ValueError, parse_due, "5 April", TODAY)

    def test_due_is_kept_and_listed(self):
        self.run_command("add", "pay rent", "--due", "2099-01-02")
        self.run_command("add", "rest")
        self.assertEqual(self.run_command("list"), "1. [ ] pay rent (due 2099-01-02)\n2. [ ] rest\n")

    def test_old_files_load(self):
        self.path.write_text('[{"title": "rest", "done": false}]')
        self.assertEqual(self.run_command("list"), "1. [ ] rest\n")
