-- Reads only the clock, to keep the round trip short.
select (extract(epoch from clock_timestamp()) * 1000000)::bigint as now_us
