"""Runs small Python programs in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Generator
from contextlib import contextmanager

PRELUDE = """
import asyncio, os, signal, sys, threading, time
# As from a terminal, also where the tests run with the signal ignored (nohup).
signal.signal(signal.SIGINT, signal.default_int_handler)
import leasehold
from leasehold import connect
lock = connect(os.environ["LEASEHOLD_URL"], namespace=os.environ["LEASEHOLD_NAMESPACE"])
def say(word):
    print(word, flush=True)
"""


class Program:
    """A running program that prints a word a line."""

    def __init__(self, text: str, url: str, namespace: str) -> None:
        environment = {**os.environ, "LEASEHOLD_URL": url, "LEASEHOLD_NAMESPACE": namespace}
        command = [sys.executable, "-X", "faulthandler", "-c", PRELUDE + textwrap.dedent(text)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)

    @property
    def pid(self) -> int:
        return self.process.pid

    def expect(self, word: str) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if line != word:
            self.process.kill()
            raise AssertionError(f"{line!r}, not {word!r}: {self.process.communicate()}")

    def end(self, code: int = 0, limit: float = 30.0) -> str:
        """Waits for the end of the program, which must have this exit code; what it printed to standard error."""
        try:
            output, errors = self.process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"it hangs: {self.process.communicate()}") from None
        assert self.process.returncode == code, (self.process.returncode, output, errors)
        return errors


@contextmanager
def program(text: str, url: str, namespace: str) -> Generator[Program]:
    """Runs a program, and kills it at the end if it still runs."""
    running = Program(text, url, namespace)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
        running.process.communicate()
