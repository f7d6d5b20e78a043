"""What is passed around: scenarios, backends, spans, calls and runs, and how people's files become them."""
