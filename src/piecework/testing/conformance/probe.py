"""What the three suites share: time, patience, and texts that break careless adapters."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from piecework import clock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Probe:
    """The scales of a suite. A slow backend raises them, a virtual clock lowers them.

    Attributes:
        tick: Seconds in which something may happen that must not.
        patience: Seconds after which something has not happened that must.
    """

    tick: float = 0.05
    patience: float = 10.0

    async def advance(self, seconds: float) -> None:
        """Let time pass for the backend; a suite over a manual clock turns that instead."""
        await clock.sleep(seconds)

    async def eventually(self, holds: Callable[[], Awaitable[bool]]) -> None:
        """Wait until a condition holds.

        Raises:
            TimeoutError: It did not hold within ``patience``.
        """
        async with asyncio.timeout(self.patience):
            while not await holds():
                await clock.sleep(self.tick / 5)


def hard_texts() -> list[str]:
    """Texts that adapters tend to change: controls, noncharacters, long and mixed ones."""
    texts = [
        "",
        " ",
        " padded ",
        "\x00",
        "nul\x00inside",
        "".join(map(chr, range(0x20))),
        "line\r\nbreak\nand\ttab\r",
        "\x7f\x80\x85\x9f",
        "\ufeffbom",
        "\ufffe\uffff",
        "\U0001fffe\U0010ffff",
        "\ufdd0\ufdef",
        "\u2028\u2029",
        "\u202eright to left",
        "e\u0301 and \u00e9",
        "👩‍👩‍👧‍👦🏳️‍🌈🇩🇪",
        "日本語 и русский العربية",
        "\\u0000 \\x00 %00 &amp; &#0; <b>]]>",
        '{"json": "\\"quoted\\""}',
        "null",
        "1e400",
        "'; DROP TABLE messages; --",
    ]
    dice = random.Random(20)  # noqa: S311 - the same texts in every run
    texts += [
        "".join(_any_character(dice) for _ in range(dice.randrange(1, 40))) for _ in range(40)
    ]
    return texts


def _any_character(dice: random.Random) -> str:
    while True:
        code = dice.randrange(dice.choice((0x100, 0x10000, 0x110000)))
        if not 0xD800 <= code <= 0xDFFF:
            return chr(code)
