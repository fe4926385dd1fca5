select * from leasehold.renew_many($1, $2, $3, $4, $5)
