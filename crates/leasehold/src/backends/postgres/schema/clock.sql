-- The server's wall clock, read with as little else as can be, so that the round trip is the only doubt.
select (extract(epoch from clock_timestamp()) * 1000000)::bigint as now_us
