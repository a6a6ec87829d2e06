"""A handler has failed: what follows is decided here, and written by the settler."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from piecework.engine.decide import Again, Die, PutOff, check_fate, decide_failure
from piecework.engine.invoke import BadInputError, BadResultError
from piecework.signals import RetryAbort, WorkSignal
from piecework.state import WorkInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from piecework.definitions import Fate
    from piecework.engine.active import Active
    from piecework.engine.core import Core
    from piecework.engine.settler import Settler


def work_info(active: Active) -> WorkInfo:
    """What hooks are told of a work."""
    env = active.env
    return WorkInfo(
        id=env.id,
        type=env.type,
        group_id=env.group_id,
        attempt=env.attempt,
        attempts=env.retry.attempts,
        input=active.entry.work_type.binding.mapping(env.input),
    )


class Failures:
    """Decides on failures.

    Args:
        core: The shared parts.
        settler: Writes what was decided.
    """

    def __init__(self, core: Core, settler: Settler) -> None:
        self._core = core
        self._settler = settler

    async def failed(self, active: Active, error: BaseException) -> None:
        """Decide what follows a failure, and write it."""
        if isinstance(error, (BadInputError, BadResultError)):
            kind = "bad input" if isinstance(error, BadInputError) else "bad result"
            await self._settler.die(active, Die(f"{kind}: {error}", "InvalidWorkError", ""))
            return
        core = self._core
        env = active.env
        verdict = decide_failure(
            error,
            env,
            classify=self._classifier(active, error),
            now_ms=core.clock.now_ms(),
            random=core.random,
        )
        match verdict:
            case Again(delay, text):
                now = core.clock.now_ms()
                new = env._replace(attempt=env.attempt + 1, start_at=now + round(delay * 1000))
                if await self._settler.put_off(active, new):
                    self._settler.count_failure(active, will_retry=True)
                    active.entry.metrics.retried(delay)
                    core.emit(
                        "failed",
                        env,
                        active.entry,
                        will_retry=True,
                        error=text,
                        start_at=new.start_at,
                    )
            case PutOff(start_at, turn, text):
                new = env._replace(start_at=start_at, turn=env.turn + turn, input=text or env.input)
                if await self._settler.put_off(active, new):
                    delay = (start_at - core.clock.now_ms()) / 1000
                    active.entry.metrics.deferred(delay)
                    core.emit("deferred", env, active.entry, start_at=start_at)
            case Die():
                await self._settler.die(active, verdict)
            case _:
                assert_never(verdict)

    def _classifier(
        self, active: Active, error: BaseException
    ) -> Callable[[BaseException], Fate] | None:
        hook = active.entry.on_failure or self._core.hooks.on_failure
        if hook is None or isinstance(error, (WorkSignal, RetryAbort)):
            return None

        def classify(error: BaseException) -> Fate:
            try:
                fate = hook(error, work_info(active))
                return check_fate(fate, self._core.clock.now_ms())
            except Exception as broken:  # noqa: BLE001 - fall back to a counted retry
                self._core.hooks.report(broken, "commit", "on_failure raised")
                return None

        return classify
