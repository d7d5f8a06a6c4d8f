"""Compiled fast paths: parse SEND frames, write MESSAGE and SEND_RECEIPT frames."""

__all__: list[str] = []
