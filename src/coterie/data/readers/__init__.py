"""Formats in which data sets are published."""
