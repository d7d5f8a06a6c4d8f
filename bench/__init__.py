"""Measurements against the raw operation, both sides in one run; `python -m bench`."""
