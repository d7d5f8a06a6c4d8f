"""An object store on a segmented log. Start reading in `store.py`; `docs/blobs.md` explains it."""

__all__: list[str] = []
