"""The first formula: what one client does between two exchanges."""
