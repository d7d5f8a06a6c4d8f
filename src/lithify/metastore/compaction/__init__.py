"""Compaction of the history of revisions, in the words of the kernel.

    holds.py                named holds, which are keys of the metastore
    horizon.py              the holds, and the last revision that may be compacted
    plan.py                 what a run would remove
    leader_runs.py          what all runs of the leader share
    settings.py             how long it is kept, and the interval of runs
    history_compaction.py   a run, its report, and its place in the queue of runs

A run raises the floor; what is visible above it stays. It publishes with one command, COMPACT. What
was retired by it is removed by each member (`metastore/maintenance.py`), and its entries by Raft's
snapshots and compaction.

A crash before COMPACT leaves nothing. A crash after it leaves a floor, below which every member
removes what is there when it runs again: no run has to be resumed.
"""

__all__: list[str] = []
