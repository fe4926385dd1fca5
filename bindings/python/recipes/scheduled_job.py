"""A job of APScheduler that runs on whichever host is first; the others skip it."""

import time
from datetime import datetime

from apscheduler.schedulers.background import BackgroundScheduler
from leasehold import Leasehold


def schedule(lock: Leasehold, when: datetime, sent: list[str], host: str) -> BackgroundScheduler:
    """Starts the scheduler of one host."""

    @lock.guard("mail-customers", wait=0, on_busy="skip", max_hold=600)
    def mail_customers() -> None:
        sent.append(host)
        time.sleep(1)  # longer than the clocks of the hosts differ

    scheduler = BackgroundScheduler()
    scheduler.add_job(mail_customers, "date", run_date=when)
    scheduler.start()
    return scheduler
