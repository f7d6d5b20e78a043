"""The command line."""

from tasklist.model import Task
from tasklist.storage import load, save


def main(argv, path="tasks.json"):
    tasks = load(path)
    match argv:
        case ["add", title]:
            tasks.append(Task(title))
        case ["done", number]:
            tasks[int(number) - 1].is_done = True
        case ["list"]:
            for number, task in enumerate(tasks, 1):
                print(task.line(number))
        case _:
            print("usage: tasklist add TITLE | done NUMBER | list")
            return 2
    save(path, tasks)
    return 0
