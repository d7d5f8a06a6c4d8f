"""The compaction kernel: horizon, live set, plan, rewrite, publish, reclaim."""
