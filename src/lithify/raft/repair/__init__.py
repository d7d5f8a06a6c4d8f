"""Repairs damaged segments with the entries of other members."""

__all__: list[str] = []
