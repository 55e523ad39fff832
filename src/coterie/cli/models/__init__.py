"""What uses a trained model: ``coterie export``, ``predict`` and ``personalize``."""
