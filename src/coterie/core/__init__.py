"""What everything else stands on: named tensors, randomness by key, errors, specs, files."""
