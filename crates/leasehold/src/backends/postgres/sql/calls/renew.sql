-- Holders: namespace, sessions left, then names, ids and ttls. Answers those that it could tell of without waiting.
select * from leasehold.renew_many($1, $2, $3, $4, $5)
