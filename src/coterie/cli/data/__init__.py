"""``coterie data``."""
