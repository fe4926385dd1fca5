"""Runs the recipes as users would."""

from __future__ import annotations

import importlib
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Generator
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest
from leasehold import Leasehold, connect
from psycopg import sql
from servers import wait_until

RECIPES = Path(__file__).parents[1] / "recipes"


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, shared_url: str, namespace: str) -> None:
    monkeypatch.setenv("LEASEHOLD_URL", shared_url)
    monkeypatch.setenv("LEASEHOLD_NAMESPACE", namespace)
    monkeypatch.syspath_prepend(RECIPES)


def load(name: str) -> ModuleType:
    """The recipe, with the settings of this test."""
    sys.modules.pop(name, None)
    return importlib.import_module(name)


def test_fastapi(environment: None, shared_url: str, namespace: str) -> None:
    from fastapi.testclient import TestClient

    recipe = load("fastapi_orders")
    with TestClient(recipe.app) as web, connect(shared_url, namespace=namespace, holder="another host") as other:
        first = web.post("/orders/7/pay").json()["fence"]
        assert web.post("/orders/7/pay").json()["fence"] > first
        with other("order:7"):
            refused = web.post("/orders/7/pay")
            assert refused.status_code == 409 and "another host" in refused.text
        assert web.post("/orders/7/pay").status_code == 200


def test_apscheduler(environment: None, shared_url: str, namespace: str) -> None:
    recipe = load("scheduled_job")
    hosts = [connect(shared_url, namespace=namespace) for _ in range(3)]
    sent = list[str]()
    when = datetime.now().astimezone() + timedelta(seconds=0.5)
    schedulers = [recipe.schedule(lock, when, sent, str(at)) for at, lock in enumerate(hosts)]
    try:
        wait_until(lambda: len(sent) > 0 and not any(one.get_jobs() for one in schedulers), "the job")
    finally:
        for scheduler in schedulers:
            scheduler.shutdown()
        for lock in hosts:
            lock.close_sync()
    assert len(sent) == 1


def test_django(environment: None, shared_url: str, namespace: str) -> None:
    from django.conf import settings
    from django.core.management import CommandError, call_command

    if not settings.configured:
        settings.configure()
    output, recipe = io.StringIO(), load("django_rebuild")
    call_command(recipe.Command(), stdout=output)
    assert output.getvalue() == "part 0\npart 1\npart 2\n"
    with connect(shared_url, namespace=namespace, holder="another host") as other, other("rebuild-index"):
        with pytest.raises(CommandError, match="another host"):
            call_command(recipe.Command(), stdout=output)


class Rpc(BaseHTTPRequestHandler):
    """Answers rpc calls as PostgREST does, by calling the function of that name with named arguments."""

    database = ""

    def do_POST(self) -> None:
        arguments: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        call = sql.SQL("select public.{}({})").format(
            sql.Identifier(self.path.split("?")[0].rsplit("/", 1)[-1]),
            sql.SQL(", ").join(
                sql.SQL("{} => {}").format(sql.Identifier(name), sql.Literal(value)) for name, value in arguments.items()
            ),
        )
        with psycopg.connect(self.database, autocommit=True) as database:
            row = database.execute(call).fetchone()
        body = json.dumps(None if row is None else row[0]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def rpc_url(postgres_url: str) -> Generator[str]:
    command = [sys.executable, "-m", "leasehold", "init", "-b", postgres_url, "--expose", "public"]
    subprocess.run(command, check=True, capture_output=True, env=os.environ)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Rpc,), {"database": postgres_url}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_supabase_rpc(rpc_url: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from postgrest import SyncPostgrestClient

    monkeypatch.syspath_prepend(RECIPES)
    recipe = load("supabase_rpc")
    client = SyncPostgrestClient(rpc_url)
    # SQL callers use the namespace `default`.
    with connect(postgres_url, namespace="default", holder="python") as lock:
        assert_excluded(recipe, client, lock)


def assert_excluded(recipe: ModuleType, client: Any, lock: Leasehold) -> None:
    with lock("rpc-job") as lease:
        with recipe.rpc_lock(client, "rpc-job", "edge-function") as held:
            assert not held
    with recipe.rpc_lock(client, "rpc-job", "edge-function") as held:
        assert held
        assert [one.holder for one in lock.list_sync("rpc-job")] == ["edge-function"]
        assert lock("rpc-job").try_acquire_sync() is None
    with lock("rpc-job", wait=2) as again:
        assert again.fence > lease.fence
