-- What must not depend on the role's or the database's defaults. A client that vanished is
-- noticed within about 11 s: by the keepalives, which stop where something is sent to it, or by what it does not confirm.
set default_transaction_isolation = 'read committed';
set default_transaction_read_only = off;
-- Below the limit after which a call is given up: what is given up must not happen later.
set statement_timeout = '4s';
set idle_in_transaction_session_timeout = '60s';
set jit = off;
-- As the functions set them for everybody who does not own them; the time also goes for the commit of a hand-off,
-- which waits for other notifications.
set search_path = pg_catalog, pg_temp;
set lock_timeout = '1s';
-- A table of few names fits on a page or two, which looks cheap to read as a whole; rows are always found by their keys.
set seq_page_cost = 100;
set tcp_keepalives_idle = 5;
set tcp_keepalives_interval = 2;
set tcp_keepalives_count = 3;
set tcp_user_timeout = '11s';
