-- namespace, channel, history, name, fence, reason. Answers one leasehold.answer.
select * from leasehold.evict_fence($1, $2, $3, $4, $5, $6)
