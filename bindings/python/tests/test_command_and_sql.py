"""One lock for Python, the command and SQL: each excludes the others, in the order in which they asked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from leasehold import LockBusy, connect
from psycopg.sql import SQL, Identifier, Literal
from servers import wait_until


def test_python_and_the_command_take_turns(shared_url: str, namespace: str, tmp_path: Path) -> None:
    environment = {**os.environ, "LEASEHOLD_URL": shared_url, "LEASEHOLD_NAMESPACE": namespace}
    log = tmp_path / "order"
    command = [sys.executable, "-m", "leasehold", "run"]
    with connect(shared_url, namespace=namespace) as lock:

        def waiting() -> int:
            return sum(lease.state == "waiting" for lease in lock.list_sync("x"))

        with lock("x"):
            assert subprocess.run([*command, "-n", "x", "--", "true"], env=environment).returncode == 75
            say = [*command, "x", "--", "sh", "-c", f"echo command >> {log}; sleep 0.2"]
            running = subprocess.Popen(say, env=environment)
            wait_until(lambda: waiting() == 1, "the command in the queue")
            assert lock("x").try_acquire_sync() is None
        with lock("x", wait=20):
            with open(log, "a") as order:
                order.write("python\n")
        assert running.wait(20) == 0
    assert log.read_text() == "command\npython\n"


def test_sql_and_python_exclude_each_other(postgres_url: str) -> None:
    with connect(postgres_url, namespace="default") as lock, psycopg.connect(postgres_url, autocommit=True) as sql:

        def call(function: str, *arguments: object) -> bool:
            name, places = Identifier("leasehold", function), SQL(", ").join(map(Literal, arguments))
            row = sql.execute(SQL("select {}({})").format(name, places)).fetchone()
            return row is not None and row[0] is True

        with lock("sql-job"):
            assert not call("acquire_lock", "sql-job", "psql", 30)
        assert call("acquire_lock", "sql-job", "psql", 30)
        with pytest.raises(LockBusy, match="psql"):
            lock("sql-job", wait=0).acquire_sync()
        assert call("release_lock", "sql-job", "psql")
        with lock("sql-job", wait=5):
            pass
