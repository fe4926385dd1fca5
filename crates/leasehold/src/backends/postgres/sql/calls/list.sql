select * from leasehold.list_leases($1, $2, $3, $4, $5)
