"""Whole members of a group whose last written batch is damaged, by one seed.

    python -m tests.property.raft_damaged [--seeds N] [--first SEED] [--steps N]

The world is that of `raft_cluster.py`. In addition a member is killed, a byte of the last batch of
its write-ahead log is flipped, and it is started again. One at a time: the next one only when all
members trust their logs. Power cuts, which tear what was being written, come whenever they like.

Checked, beside what that world checks: a member that may have lost entries does not lead, and comes
to trust its log again.
"""

from __future__ import annotations

from collections import Counter

from lithify.errors import DamagedFile
from lithify.fs import MemoryFileSystem, read_file
from lithify.raft.core.quorum import has_quorum
from lithify.raft.storage.wal.format import WalTail, parse_batches
from lithify.raft.storage.wal.recovery import wal_files
from tests.property.raft_cluster import NAMES, World
from tests.property.seeds import simulated, worlds


class Damaged(World):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rng = self.random
        self.actions += [(rng.choice((1, 3)), self.damage), (1, self.prove)]

    def prove(self) -> None:
        if (member := self.one()) is not None:
            with self.running(member):
                member.storage.wal.prove()

    def is_trusted(self) -> bool:
        """Have all members, also those that do not run, all that they acknowledged?"""
        stored = (own for each in self.members.values() for own in each.storage.groups.values())
        return not self.dead and all(own.doubt_term is None for own in stored)

    def damage(self) -> None:
        member = self.one()
        if member is None or not self.is_trusted() or not self.can_do_without(member.name):
            return
        disk = member.disk.kill_clone()
        path = self.flip_last(disk)
        if not path:
            return
        self.counts["damages"] += 1
        del self.members[member.name]
        self.start(member.name, disk)

    def can_do_without(self, name: str) -> bool:
        """Can the others elect a leader, whichever configuration turns out to be in force?"""
        others = set(NAMES) - {name}
        groups = (group for each in self.members.values() for group in each.groups.values())
        configs = (config for group in groups for config in group.open_configs)
        return all(has_quorum(config, others) for config in configs if config.electorate)

    def change(self) -> None:
        # A member in doubt counts as one that is down: no member counts it for a quorum.
        if self.is_trusted():
            super().change()

    def flip_last(self, disk: MemoryFileSystem) -> str:
        """Flip a byte of the last batch; the file, or nothing if it would be more than that."""
        files = wal_files(disk, "d/wal")
        if not files:
            return ""
        number, path = files[-1]
        data = read_file(disk, path)
        whole = parse_batches(data, number, path)
        # The manifest lists the first batch of a file, and an empty one has nothing to lose.
        is_last = len(whole.batches) > 1 and whole.batches[-1] and whole.tail is WalTail.NOTHING
        if not is_last:
            return ""
        # The last batch begins where, without it, nothing is left over.
        first = whole.end - 1
        while parse_batches(data[:first], number, path).tail is not WalTail.NOTHING:
            first -= 1
        place = self.random.randrange(first, whole.end)
        disk.flip(path, place, 1 << self.random.randrange(8))
        try:
            tail = parse_batches(read_file(disk, path), number, path).tail
        except DamagedFile:
            raise AssertionError("only the last batch was to be damaged") from None
        assert tail is WalTail.DAMAGED, f"byte {place - first} of the last batch"
        return path

    def tick(self) -> None:
        super().tick()
        for member in self.members.values():
            for name, group in member.groups.items():
                if member.storage.groups[name].doubt_term is not None:
                    self.counts["doubts"] += 1
                    assert not group.leading_term, "it may lack what was acknowledged"


def simulate(seed: int, steps: int = 1200) -> Damaged:
    return simulated(Damaged, seed, steps)


def main() -> None:
    counts: Counter[str] = Counter()
    for world in worlds(Damaged, seeds=100, steps=1200):
        counts += world.counts
    print(", ".join(f"{n} {what}" for what, n in counts.items()))


if __name__ == "__main__":
    main()
