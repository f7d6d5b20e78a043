"""What is passed around: scenarios, backends, spans, calls and runs. No behaviour beyond what a value knows of itself."""
