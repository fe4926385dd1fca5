"""A Django management command, APP/management/commands/rebuild_index.py, that runs in one place at a time."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from leasehold import LockBusy, connect

lock = connect()


class Command(BaseCommand):
    help = "Rebuilds the search index, unless another host does."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            with lock("rebuild-index", wait=0) as lease:
                for part in range(3):
                    lease.check()  # before each write: raises LockLost if the lock is gone
                    self.stdout.write(f"part {part}")
        except LockBusy as busy:
            raise CommandError(f"another host rebuilds the index: {busy}") from busy
