"""`python -m agentprof.serve.sim`: the server process of `start_sim`."""

from __future__ import annotations

import sys

from agentprof.serve.sim.process import run_child

if __name__ == "__main__":
    sys.exit(run_child())
