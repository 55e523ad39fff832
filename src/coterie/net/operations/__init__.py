"""What an operator sees of a peer: checks, status, metrics, the log, and training alone."""
