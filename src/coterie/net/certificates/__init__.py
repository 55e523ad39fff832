"""The authority of a federation and the certificates of its members."""
