-- One lease, for an owner who has settled in: namespace, channel, history, name, id, ending, problem, details. Answers one leasehold.answer.
select * from leasehold._release_one($1, $2, $3, $4, $5, $6, $7, $8)
