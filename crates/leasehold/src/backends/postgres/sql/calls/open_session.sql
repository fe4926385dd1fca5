-- The name of the client. Answers the number of the session that this connection is from now on.
select leasehold.open_session($1)
