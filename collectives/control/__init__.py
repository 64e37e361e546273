"""Keeping calls in step: what every rank calls is compared before a call returns, and a rank that fails tells the others."""
