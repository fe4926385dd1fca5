-- Several leases: as release_one, with arrays from the name on, sorted by name. Answers one each.
select * from leasehold.release_many($1, $2, $3, $4, $5, $6, $7, $8)
