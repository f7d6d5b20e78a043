"""What spans say: frames, ledger, rates and cautions, as pure functions of the trace. No files, clock, network, print."""
