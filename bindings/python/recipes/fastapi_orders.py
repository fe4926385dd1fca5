"""A web service on many hosts that pays an order in one place at a time."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from leasehold import LockBusy, connect

lock = connect()  # LEASEHOLD_URL says where


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    await lock.open()  # a wrong URL is found when the service starts
    yield
    await lock.close()


app = FastAPI(lifespan=lifespan)
paid: dict[int, int] = {}


async def charge(order: int, fence: int) -> None:
    """Charges the card; the fence lets the ledger refuse a worker that comes too late."""
    if paid.get(order, 0) < fence:
        paid[order] = fence


@app.post("/orders/{order}/pay")
async def pay(order: int) -> dict[str, int]:
    try:
        async with lock(f"order:{order}", wait=2) as lease:
            await charge(order, lease.fence)
            return {"order": order, "fence": lease.fence}
    except LockBusy as busy:
        raise HTTPException(409, f"order {order} is being paid: {busy}") from busy
