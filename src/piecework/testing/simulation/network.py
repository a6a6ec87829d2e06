"""What lies between a process and its ports: latency, lost answers, and the death of either end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from piecework.errors import BackendError

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Callable, Coroutine

    from piecework.testing.simulation.host import Host
    from piecework.testing.simulation.loop import SimulationLoop
    from piecework.testing.simulation.plan import Plan

T = TypeVar("T")

#: Seconds after which an adapter gives up a call that nobody answers.
_PATIENCE = (5.0, 60.0)


class Network:
    """Carries the calls of all hosts to the ports that they share.

    Args:
        loop: The loop.
        plan: What goes wrong.
        context: The context of the world: what is scheduled in it survives every host.
        crash: Ends the process of a host at once.
        note: Told of what happens, for the history.
    """

    def __init__(
        self,
        loop: SimulationLoop,
        plan: Plan,
        context: contextvars.Context,
        crash: Callable[[Host], None],
        note: Callable[[Host, str], None],
    ) -> None:
        self.loop = loop
        self.plan = plan
        self.context = context
        self.crash = crash
        self.note = note
        self.over = False
        #: Until when nobody reaches a port, in seconds of the loop.
        self.out_until: dict[str, float] = {}

    def later(self, delay: float, call: Callable[..., object], *args: Any) -> None:
        """Have the world do something, whatever becomes of the hosts."""
        if delay > 0:
            self.loop.call_later(delay, call, *args, context=self.context)
        else:
            self.loop.call_soon(call, *args, context=self.context)

    def reaches(self, host: Host, port: str) -> bool:
        """Whether a host reaches a port now."""
        now = self.loop.elapsed
        return now >= host.cut_until and now >= self.out_until.get(port, 0.0)

    async def call(
        self,
        host: Host,
        port: str,
        operation: str,
        effect: Callable[[str | None], Coroutine[Any, Any, T]],
        undo: Callable[[T], None] | None = None,
    ) -> T:
        """Make a call of a port for a host.

        Args:
            host: Who calls.
            port: ``queue``, ``store`` or ``pubsub``.
            operation: The name of the method.
            effect: Makes the call; it is given the fault that the port itself is to show.
            undo: Takes back what an effect has given to a call that was cancelled.
        """
        if self.over:
            raise asyncio.CancelledError
        host.calls += 1
        random = host.random
        fault = self.plan.at_call(host.name, host.calls, operation, random.random())
        if fault == "crash-before":
            self.note(host, f"dies before {operation}")
            self.crash(host)
            await self._never()
        request = _Request(self, host, port, operation, effect, undo, fault)
        low, high = self.plan.latency[port]
        request.reply_after = low + (high - low) * random.random()
        self.later(low + (high - low) * random.random(), request.arrive)
        try:
            return await request.answer
        except asyncio.CancelledError:
            request.abandon()
            raise

    async def _never(self) -> None:
        await self.loop.create_future()

    def draw(self, host: Host, least: float, most: float) -> float:
        """A random number of a host between two."""
        return least + (most - least) * host.random.random()


class _Request:
    """One call under way."""

    __slots__ = (
        "answer",
        "effect",
        "fault",
        "host",
        "network",
        "operation",
        "port",
        "reply_after",
        "task",
        "undo",
    )

    def __init__(
        self,
        network: Network,
        host: Host,
        port: str,
        operation: str,
        effect: Callable[[str | None], Coroutine[Any, Any, Any]],
        undo: Callable[[Any], None] | None,
        fault: str | None,
    ) -> None:
        self.network = network
        self.host = host
        self.port = port
        self.operation = operation
        self.effect = effect
        self.undo = undo
        self.fault = fault
        self.reply_after = 0.0
        self.answer: asyncio.Future[Any] = network.loop.create_future()
        self.task: asyncio.Task[Any] | None = None

    def arrive(self) -> None:
        """The request has reached the port."""
        if self.answer.cancelled() or self.network.over:
            return
        if not self.network.reaches(self.host, self.port):
            self._fail("cannot be reached", self.network.draw(self.host, 0.0, 5.0))
        elif self.fault in ("refused", "conflict"):
            self._fail(self.fault, 0.0)
        elif self.fault == "unanswered" and self.host.random.random() < 0.5:
            self._fail("no answer", self.network.draw(self.host, *_PATIENCE))
        else:
            self._work()

    def _work(self) -> None:
        """Have the effect. One that may wait is a task, which ends when its host dies."""
        coroutine = self.effect(self.fault)
        if self.operation == "pop":
            self.task = self.network.loop.create_task(coroutine, context=self.network.context)
            self.host.on_death[self] = self.abandon
            self.task.add_done_callback(self._waited, context=self.network.context)
            return
        try:
            coroutine.send(None)  # every other call of a port in memory answers at once
        except StopIteration as stop:
            self._done(stop.value, None)
        except Exception as error:  # noqa: BLE001 - it is the answer
            self._done(None, error)
        else:
            raise RuntimeError(f"{self.operation} of a port in memory waited")

    def _waited(self, task: asyncio.Task[Any]) -> None:
        self.host.on_death.pop(self, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._done(task.result(), None)
        else:
            assert isinstance(error, Exception)
            self._done(None, error)

    def _done(self, value: Any, error: Exception | None) -> None:
        """The effect is there; now the answer goes back."""
        network, host = self.network, self.host
        # Nothing goes wrong in the calm, whatever was planned before.
        fault = None if network.plan.calm else self.fault
        delay = self.reply_after
        if error is None and fault in ("lost-reply", "partial", "unanswered"):
            error = self._error("no answer came back")
            if fault == "unanswered":
                delay = network.draw(host, *_PATIENCE)
        elif fault == "late-reply":
            delay += network.draw(host, 0.5, 40.0)
        elif fault == "crash-after":
            network.note(host, f"dies after {self.operation}")
            if not host.dead:
                network.crash(host)
            return
        network.later(delay, self._reply, value, error)

    def _reply(self, value: Any, error: Exception | None) -> None:
        if self.answer.done():
            if self.undo is not None and error is None:
                self.undo(value)
        elif error is not None:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(value)

    def abandon(self) -> None:
        """The caller waits no more."""
        if self.task is not None:
            self.task.cancel()

    def _fail(self, problem: str, delay: float) -> None:
        self.network.later(delay + self.reply_after, self._reply, None, self._error(problem))

    def _error(self, problem: str) -> BackendError:
        return BackendError(f"the simulated {self.port}", self.operation, problem)
