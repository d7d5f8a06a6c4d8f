"""A segmented append-only log. Start reading in `log.py`; the bytes are in `docs/formats.md`."""

__all__: list[str] = []
