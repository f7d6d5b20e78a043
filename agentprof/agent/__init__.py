"""The coding agent: its loop, its tools, and the workspace and sandbox that they run in."""
