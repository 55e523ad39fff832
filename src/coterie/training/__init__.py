"""A run: from a request to rounds, measurements and results."""
