"""The second formula: what happens when models meet."""
