"""The command line."""

import argparse

from tasklist.model import Task
from tasklist.storage import load, save


def main(argv, path="tasks.json"):
    parser = argparse.ArgumentParser(prog="tasklist")
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("add")
    add.add_argument("title")
    commands.add_parser("done").add_argument("number", type=int)
    commands.add_parser("list")
    options = parser.parse_args(argv)

    tasks = load(path)
    if options.command == "add":
        tasks.append(Task(options.title))
    elif options.command == "done":
        tasks[options.number - 1].is_done = True
    else:
        for number, task in enumerate(tasks, 1):
            print(line(number, task))
    save(path, tasks)
    return 0


def line(number, task):
    mark = "x" if task.is_done else " "
    return f"{number}. [{mark}] {task.title}"
