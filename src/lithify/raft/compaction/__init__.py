"""Compacts a group's segments with the compaction kernel (`lithify.compaction`).

settings.py                  settings of a group
triggers.py                  thresholds that start a merge
segments_port.py             presents the group's segments to the kernel: file names as the manifest
write_merged_segments.py     copies live entries into the targets of a merge
raft/storage/merge_links.py  publishes merges on disk, and recovers from a crash in a publish
group_compaction.py          the jobs of one group, and how the group applies their results
run_requests.py              a node's queue of runs, and its answers about them
live_entry_rewrites.py       moves scattered live entries to the head of the log
rewrite_pacing.py            chooses these entries, and limits the rate
"""

__all__: list[str] = []
