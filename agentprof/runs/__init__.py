"""Runs: what one command does, traced through OpenTelemetry and kept in a run folder."""
