"""What a peer is configured with, what members agree on, and how a peer starts."""
