select leasehold.open_session($1)
