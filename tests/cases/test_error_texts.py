"""Errors that say what to do: the case B60, as far as the core goes."""

from __future__ import annotations

import pytest
from tests.cases.conftest import Fleet

from piecework import (
    BackendError,
    ConfigError,
    InvalidWorkError,
    Retry,
    UnknownWorkError,
    create_work,
    define_work,
)
from piecework.testing.virtual_clock import VirtualClock


@define_work
def resize(image: str, width: int) -> str:
    return image


async def test_an_error_of_a_port_names_resource_operation_and_remedy_with_its_cause() -> None:
    # B60
    try:
        raise ConnectionRefusedError("port 6379")
    except ConnectionRefusedError as cause:
        error = BackendError("redis at localhost", "push", "Is it running?")
        error.__cause__ = cause
    text = str(error)
    assert "redis at localhost" in text
    assert "push" in text
    assert "Is it running?" in text


async def test_enqueueing_before_a_start_needs_no_start(fleet: Fleet) -> None:  # B60
    system = fleet.system(resize)
    handle = await system.enqueue(resize("a.jpg", 1))
    assert (await handle.state()).status == "pending"


async def test_an_enqueue_that_cannot_reach_its_queue_says_what_failed(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B60
    def fail(operation: str) -> None:
        if operation == "push":
            raise BackendError("queue https://sqs/none", "push", "Check the URL.")

    system = fleet.system(resize)
    fleet.switches[0].fail = fail
    with pytest.raises(BackendError, match=r"push on queue https://sqs/none failed: Check the URL"):
        await system.enqueue(resize("a.jpg", 1))


async def test_a_wrong_input_names_type_field_and_fix() -> None:  # B60
    async with create_work(work=[resize]) as system:
        with pytest.raises(InvalidWorkError, match=r"'resize'.*'width'"):
            await system.enqueue("resize", {"image": "a.jpg", "width": "wide"})
        with pytest.raises(InvalidWorkError, match=r"'resize'.*'width'"):
            await system.enqueue("resize", {"image": "a.jpg"})


async def test_an_unknown_name_lists_the_known_ones() -> None:  # B60
    async with create_work(work=[resize]) as system:
        with pytest.raises(UnknownWorkError, match="rezise.*Registered here: resize"):
            await system.enqueue("rezise", {})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"visibility": 0}, "visibility"),
        ({"heartbeat": 20, "visibility": 30}, "heartbeat.*half of visibility"),
        ({"retry": Retry(attempts=3), "poll_interval": -1}, "poll_interval"),
    ],
)
def test_an_option_that_cannot_be_used_is_named_with_its_range(
    options: dict[str, object], says: str
) -> None:  # B60
    with pytest.raises(ConfigError, match=says):
        create_work(**options)
