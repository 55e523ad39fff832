"""What trains: ``coterie run``, ``compare`` and ``tune``."""
