"""Figures of the papers, and their tables, for the pages of runs."""
