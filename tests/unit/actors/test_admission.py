"""Seats are given in the order of asking and never beyond their number."""

import asyncio

from segue.actors.admission import Admission


def test_seats_are_bounded_and_given_in_order() -> None:
    events: list[str] = []
    taken, most = 0, 0

    async def sit(admission: Admission, name: str, count: int) -> None:
        nonlocal taken, most
        async with admission.seats(count):
            taken += count
            most = max(most, taken)
            events.append(name)
            await asyncio.sleep(0.001)
            taken -= count

    async def play() -> None:
        admission = Admission(4)
        # the large one waits for the first two, and the small one behind it does not overtake
        await asyncio.gather(*(sit(admission, name, count) for name, count in [("a", 2), ("b", 2), ("c", 3), ("d", 1)]))

    asyncio.run(play())
    assert events == ["a", "b", "c", "d"]
    assert most == 4


def test_one_that_asks_for_more_than_there_is_goes_alone() -> None:
    async def play() -> list[str]:
        admission, events = Admission(2), []

        async def sit(name: str, count: int) -> None:
            async with admission.seats(count):
                events.append(f"{name} in")
                await asyncio.sleep(0.001)
                events.append(f"{name} out")

        await asyncio.gather(sit("small", 1), sit("large", 5), sit("next", 2))
        return events

    assert asyncio.run(play()) == ["small in", "small out", "large in", "large out", "next in", "next out"]


def test_a_cancelled_wait_and_a_failed_episode_give_their_seats_back() -> None:
    async def play() -> str:
        admission = Admission(1)

        async def fail() -> None:
            async with admission.seats(1):
                await asyncio.sleep(0.001)
                raise ValueError

        async def wait() -> str:
            async with admission.seats(1):
                return "seated"

        failing, cancelled, last = asyncio.create_task(fail()), asyncio.create_task(wait()), asyncio.create_task(wait())
        await asyncio.sleep(0)
        cancelled.cancel()
        results = await asyncio.gather(failing, cancelled, last, return_exceptions=True)
        assert isinstance(results[0], ValueError) and isinstance(results[1], asyncio.CancelledError)
        return results[2]

    assert asyncio.run(play()) == "seated"


def test_a_holder_may_leave_in_the_turn_in_which_the_next_in_line_is_cancelled() -> None:
    async def play() -> list[str]:
        admission, gate = Admission(1), asyncio.Event()

        async def hold() -> str:
            async with admission.seats(1):
                await gate.wait()
            return "left"

        async def wait() -> str:
            async with admission.seats(1):
                return "seated"

        holder, cancelled, last = (asyncio.create_task(call()) for call in (hold, wait, wait))
        await asyncio.sleep(0)
        # the holder runs, and leaves, before the cancelled one does
        gate.set()
        cancelled.cancel()
        results = await asyncio.wait_for(asyncio.gather(holder, last), timeout=5)
        assert cancelled.cancelled()
        return results

    assert asyncio.run(play()) == ["left", "seated"]
