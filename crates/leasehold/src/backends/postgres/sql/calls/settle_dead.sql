select * from leasehold.settle_dead($1, $2, $3, $4, $5)
