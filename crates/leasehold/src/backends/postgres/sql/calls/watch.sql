-- namespace, channel. Answers the channel on which events are told.
select leasehold.watch($1, $2)
