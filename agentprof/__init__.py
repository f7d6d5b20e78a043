"""agentprof: where an agent's wall time goes when it runs on a served model."""

from importlib.metadata import version

__version__ = version("agentprof")
