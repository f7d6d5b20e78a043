"""A simulated OpenAI-compatible server: it behaves as its profile says and logs what truly happened."""

from __future__ import annotations

from agentprof.serve.sim.app import SimOptions, serve_until
from agentprof.serve.sim.process import RunningSim, start_sim
from agentprof.serve.sim.profile import Profile, load_profile
from agentprof.serve.sim.tls import check_certificate
from agentprof.serve.sim.truth import ChunkTruth, RequestTruth, read_truth

__all__ = [
    "ChunkTruth",
    "Profile",
    "RequestTruth",
    "RunningSim",
    "SimOptions",
    "check_certificate",
    "load_profile",
    "read_truth",
    "serve_until",
    "start_sim",
]
