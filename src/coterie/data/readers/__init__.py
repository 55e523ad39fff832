"""Readers of the formats in which data sets are published."""
