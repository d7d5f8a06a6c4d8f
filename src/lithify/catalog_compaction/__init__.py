"""Trims the history of the catalog to what some part of the cluster still needs.

facts          what the nodes answer, and what else decides: values
decision       which version becomes the first one that is left, and what holds it
plan           what a run would do, as a value
pins           versions that outsiders need, by name
published      the minimum begin time that a replica has durably
node_times     what a node answers, and how it publishes
runner         a run on the coordinator
compaction     its triggers, report and history, and its place in the queue of runs
"""

__all__: list[str] = []
