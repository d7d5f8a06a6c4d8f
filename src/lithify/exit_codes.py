"""Exit codes of commands.

0 is success. An error has its code as `exit_code`: `errors.py`, and the modules that define errors
of their own. Errors of a node arrive over HTTP: `http/error_responses.py` converts them to
statuses, `cli/client/errors.py` converts these to exit codes.
"""

from __future__ import annotations

__all__ = ["CONFLICT", "FAILED", "NOT_FOUND", "OUTCOME_UNKNOWN", "UNREACHABLE", "USAGE"]

FAILED = 1
"""The request failed, or damage was found."""
USAGE = 2
"""The command line is wrong; no request was made."""
NOT_FOUND = 3
"""The named thing does not exist."""
CONFLICT = 4
"""Refused, or in conflict with the present state; nothing changed."""
UNREACHABLE = 5
"""No node answered; no write was sent."""
OUTCOME_UNKNOWN = 6
"""A write was sent and not answered; it may have taken effect."""
