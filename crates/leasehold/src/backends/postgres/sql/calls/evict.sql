select * from leasehold.evict_fence($1, $2, $3, $4, $5, $6)
