"""`python -m lithify` is the command `lithify`."""

from __future__ import annotations

from lithify.cli.main import main

if __name__ == "__main__":
    main()
