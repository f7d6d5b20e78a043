"""What spans say: frames, ledger, rates and cautions, as pure functions. No files, clock, network, print."""
