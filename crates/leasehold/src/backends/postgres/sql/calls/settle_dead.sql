-- Those who wait behind a connection: namespace, channel, history, names, ids. Answers who still does, and hints.
select * from leasehold.settle_dead($1, $2, $3, $4, $5)
