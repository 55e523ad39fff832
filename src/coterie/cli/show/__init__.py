"""What there is: ``coterie list`` and ``coterie topology``."""
