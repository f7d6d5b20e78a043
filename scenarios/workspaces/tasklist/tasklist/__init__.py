"""A list of tasks in one JSON file."""
