"""Doers: how many works run at once, and which is next."""

from piecework.doers.doer import Doer, Task
from piecework.doers.ordered import OrderedDoer, age_doer, balanced_doer, priority_doer
from piecework.doers.rate_limited import RateLimitedDoer, rate_limited_doer
from piecework.doers.unlimited import UnlimitedDoer, unlimited_doer
from piecework.doers.wrap import do_with

__all__ = [
    "Doer",
    "OrderedDoer",
    "RateLimitedDoer",
    "Task",
    "UnlimitedDoer",
    "age_doer",
    "balanced_doer",
    "do_with",
    "priority_doer",
    "rate_limited_doer",
    "unlimited_doer",
]
