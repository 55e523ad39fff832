"""A running peer: its rounds, its mailbox, and its outbox."""
