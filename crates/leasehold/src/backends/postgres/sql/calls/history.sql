-- namespace, exact name, prefix, failures only, since, until, how many. Answers ended leases, newest first.
select * from leasehold.list_ended($1, $2, $3, $4, $5, $6, $7)
