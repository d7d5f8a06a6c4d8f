"""Policies: pure functions from segment statistics to a plan. Start in `built_in.py`."""

__all__: list[str] = []
