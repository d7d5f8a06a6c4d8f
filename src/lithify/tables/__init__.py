"""Replicated tables: rows with versions, in Raft groups that are placed by a zone of the catalog.

    column_values      a value of a column: as JSON, in a row, in an ordered key
    keys, rows         the bytes of keys and rows, checked against the columns of a table

A table's rows are spread over the partitions of its zone by a hash of the partition key. Each
partition is a Raft group that runs the machine of the metastore (`metastore/machine.py`):
revisioned keys, transactions, and values that stay in the log.
"""
