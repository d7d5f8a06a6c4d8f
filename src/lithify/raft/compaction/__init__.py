"""Compaction of a group's segments, by the kernel (`lithify.compaction`).

settings.py              what can be set
triggers.py              when a group compacts without being asked
segments_port.py         the group as the kernel sees it: names and links instead of a manifest
raft/storage/merge_links.py  publishes on disk, and what a crash in it leaves
merge_targets.py         copies what is live into the targets
group_compaction.py      when runs begin, and how the group takes in what they have done
run_requests.py          a node's queue of the runs that people ask for
"""

__all__: list[str] = []
