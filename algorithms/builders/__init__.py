"""Builders: one algorithm, or a few close relatives, per file; the registry lists them."""
