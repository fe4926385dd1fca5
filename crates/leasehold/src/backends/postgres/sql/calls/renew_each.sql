-- Whatever it is: namespace, channel, session, sessions left, history, then arrays of the parts of a Renewal. Answers one each.
select * from leasehold.renew_each($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
