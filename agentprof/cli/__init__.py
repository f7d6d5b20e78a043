"""The command line: one file a command. Parses, wires, prints, exits; no logic."""
