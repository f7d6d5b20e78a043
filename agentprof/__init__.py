"""agentprof: where an agent's wall time goes when it runs on a served model."""

__version__ = "0.1.0"
