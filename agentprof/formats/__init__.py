"""Readers of other tools' files. Formats are recognised by content, never by name."""
