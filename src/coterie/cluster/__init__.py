"""Clients on several machines: shards that play the same program, and what passes between them.

Only ``start``, ``worker`` and ``coordinator`` know of Ray, and import it when a run asks for it.
"""
