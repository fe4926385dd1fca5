-- Several leases: as acquire_one, with an array for each part of the requests, sorted by name. Answers one each.
select * from leasehold.acquire_many($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)
