"""`python -m agentprof`."""

from agentprof.cli.main import main

main()
