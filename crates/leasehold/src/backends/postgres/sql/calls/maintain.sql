select leasehold.maintain()
