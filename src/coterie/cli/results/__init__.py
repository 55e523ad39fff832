"""What shows runs that exist: ``coterie report``, ``watch`` and ``pack``."""
