-- namespace, exact name, prefix, after which name, how many names. Answers live leases.
select * from leasehold.list_leases($1, $2, $3, $4, $5)
