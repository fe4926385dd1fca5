select leasehold.watch($1, $2)
