-- Answers how much was done.
select leasehold.maintain()
