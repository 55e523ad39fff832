"""Several runs as one question: methods x seeds x settings, planned, tuned, trained and compared."""
