"""Messages between peers, and the connections that carry them."""
