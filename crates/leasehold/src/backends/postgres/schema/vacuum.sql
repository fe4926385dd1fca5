-- Makes room for new rows where old ones were. Nobody waits for it, nor it for anybody.
vacuum (skip_locked, truncate off) leasehold.entry
