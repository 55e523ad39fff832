"""``coterie peer`` and ``coterie certs``: one participant of a real federation."""
