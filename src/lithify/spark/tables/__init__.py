"""Tables as Spark DataFrames.

table_query     the options of a query
node_scan       a scan at a node: its hold, its files, its rows
stopped_node    the files of a node that does not run
table_parts     the parts of a scan, and how a task reads one
arrow_columns, row_kernels      rows as Arrow columns
"""

__all__: list[str] = []
