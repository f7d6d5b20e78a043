"""What a person reads: pure functions from an explained run to text. They neither compute figures nor print."""
