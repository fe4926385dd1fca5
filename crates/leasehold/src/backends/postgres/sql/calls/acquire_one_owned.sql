-- One lease, for an owner who has settled in: namespace, channel, session, history, then the parts of a Request. Answers one leasehold.answer.
select * from leasehold._acquire_one($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)
