-- Frees dead rows of `entry` without blocking.
vacuum (skip_locked, truncate off) leasehold.entry
