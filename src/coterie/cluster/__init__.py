"""Clients on several machines: every shard runs the same program on its own clients and exchanges messages.

Only ``start``, ``worker`` and ``coordinator`` use Ray, which is imported when a run asks for it.
"""
