"""Replicated tables: rows with versions, in Raft groups that are placed by a zone of the catalog.

    tables                   the requests of a node
    reads                    rows at a timestamp: scans and index look-ups
    partition_transaction    read-write transactions
    partitions               the groups on a node
    assignments, zone_assignments   which nodes have which partitions
    index_builds, reclaim, background   what happens beside requests
    column_values, keys, rows   the bytes of keys and rows

Rows are spread over the partitions of the zone of their table by a hash of the partition key. Each
partition is a Raft group that runs the machine of the metastore (`metastore/machine.py`):
revisioned keys, transactions, and values that stay in the log.
"""

__all__: list[str] = []
