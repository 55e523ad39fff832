"""Personalized federated learning, with a server or between peers."""

__version__ = "0.1.0"
