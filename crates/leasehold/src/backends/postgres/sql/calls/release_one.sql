-- One lease: namespace, channel, history, name, id, ending, problem, details. Answers one leasehold.answer.
select * from leasehold.release_one($1, $2, $3, $4, $5, $6, $7, $8)
