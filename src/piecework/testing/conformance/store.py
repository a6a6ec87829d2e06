"""The guarantees of the store port as tests."""

# ruff: noqa: D102 - the name of a test is its sentence

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from piecework.errors import ConfigError, ConflictError, PayloadTooLargeError
from piecework.ports import Change, Record
from piecework.testing.conformance.probe import Probe, hard_texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from piecework.ports import Store


class StoreConformance(Probe):
    """Subclass it and give a fixture ``store`` (empty, or with keys of its own for each test).

    Attributes:
        ttl: Seconds that a record with a short life lives.

    Example::

        class TestMyStore(StoreConformance):
            @pytest.fixture
            async def store(self):
                store = MyStore()
                await store.open()
                yield store
                await store.close()
    """

    ttl: float = 1.0

    async def other_client(self, store: Store) -> Store:
        """Another client of the same backend; without one, the same client."""
        return store

    async def expire(self) -> None:
        """Let ``ttl`` pass."""
        await self.advance(self.ttl + self.tick)

    async def one(self, store: Store, change: Change) -> Record:
        """Write one change and read the record back."""
        await store.write([change])
        return (await store.read([change.key]))[0]

    async def refused(self, store: Store, changes: Sequence[Change]) -> list[Record]:
        """Write what must conflict; return the records that the conflict carries."""
        try:
            await store.write(changes)
        except ConflictError as error:
            return error.records
        raise AssertionError(f"not refused: {changes}")

    async def listed(self, store: Store, index: str, *expected: str) -> None:
        """Wait until an index lists exactly these keys in this order."""

        async def same() -> bool:
            return list((await store.list(index)).items) == list(expected)

        try:
            await self.eventually(same)
        except TimeoutError:
            assert list((await store.list(index)).items) == list(expected)

    # Values and versions

    async def test_an_absent_record_has_version_zero(self, store: Store) -> None:
        assert await store.read(["a", "b"]) == [Record("a"), Record("b")]

    async def test_reading_and_writing_nothing_is_harmless(self, store: Store) -> None:
        assert await store.read([]) == []
        assert await store.write([]) == []

    async def test_each_write_of_the_value_raises_the_version(self, store: Store) -> None:
        for version in range(1, 4):
            record = await self.one(store, Change("a", value=f"v{version}"))
            assert record == Record("a", f"v{version}", version)

    async def test_writing_the_same_value_raises_the_version(self, store: Store) -> None:
        await store.write([Change("a", value="same")])
        assert (await self.one(store, Change("a", value="same"))).version == 2

    async def test_records_come_in_the_order_of_the_keys(self, store: Store) -> None:
        await store.write([Change(key, value=key) for key in "abc"])
        records = await store.read(["c", "a", "x", "b"])
        assert [record.value for record in records] == ["c", "a", None, "b"]
        assert [record.key for record in records] == ["c", "a", "x", "b"]

    async def test_one_key_can_be_read_twice(self, store: Store) -> None:
        await store.write([Change("a", value="1")])
        assert [record.value for record in await store.read(["a", "b", "a"])] == ["1", None, "1"]

    async def test_many_keys_can_be_read_at_once(self, store: Store) -> None:
        keys = [f"key {number}" for number in range(230)]
        await asyncio.gather(*(store.set(key, key) for key in keys))
        assert [record.value for record in await store.read(keys)] == keys

    async def test_a_write_returns_the_records_in_the_order_of_the_changes(
        self, store: Store
    ) -> None:
        changes = [Change(key, value=key, add={"n": 1}, fetch=True) for key in "ba"]
        records = await store.write(changes)
        assert records == [Record("b", "b", 1, {"n": 1}), Record("a", "a", 1, {"n": 1})]

    async def test_another_client_reads_what_was_written(self, store: Store) -> None:
        other = await self.other_client(store)
        await store.write([Change("a", value="seen")])
        assert await other.get("a") == "seen"

    async def test_every_text_comes_back_as_it_was_written(self, store: Store) -> None:
        for text in hard_texts():
            await store.set("text", text)
            assert await store.get("text") == text

    async def test_keys_and_names_may_be_any_text(self, store: Store) -> None:
        keys = [f"k:{text}" for text in hard_texts()]
        for key in keys:
            await store.write([Change(key, value=key, add={key: 2})])
        for key in keys:
            (record,) = await store.read([key])
            assert record == Record(key, key, 1, {key: 2})

    async def test_a_large_value_comes_back_or_is_refused_clearly(self, store: Store) -> None:
        limit = store.capabilities.max_value_bytes
        large = "x" * min(limit or 1_000_000, 1_000_000)
        await store.set("large", large)
        assert await store.get("large") == large
        if limit is None:
            return
        try:
            await store.set("large", "y" * (limit + 1))
        except PayloadTooLargeError as error:
            assert (error.size, error.limit) == (limit + 1, limit)  # noqa: PT017
        else:
            raise AssertionError("a value over the limit was taken")
        assert await store.get("large") == large

    # Conditions

    async def test_expecting_no_value_holds_only_while_there_is_none(self, store: Store) -> None:
        await store.write([Change("a", value="1", expect=0)])
        assert await self.refused(store, [Change("a", value="2", expect=0)]) == [
            Record("a", "1", 1)
        ]
        assert await store.get("a") == "1"

    async def test_expecting_a_version_holds_only_at_that_version(self, store: Store) -> None:
        await self.refused(store, [Change("a", value="1", expect=1)])
        await store.write([Change("a", value="1")])
        await store.write([Change("a", value="2", expect=1)])
        (record,) = await self.refused(store, [Change("a", value="3", expect=1)])
        assert (record.value, record.version) == ("2", 2)

    async def test_expecting_anything_always_holds(self, store: Store) -> None:
        await store.write([Change("a", value="1")])
        await store.write([Change("a", value="2")])
        assert await store.get("a") == "2"

    async def test_a_condition_can_guard_counters_alone(self, store: Store) -> None:
        await store.write([Change("a", value="1")])
        await store.write([Change("a", expect=1, add={"n": 1})])
        await self.refused(store, [Change("a", expect=2, add={"n": 1})])
        assert (await store.read(["a"]))[0].count("n") == 1

    async def test_one_of_many_conditional_writes_wins(self, store: Store) -> None:
        other = await self.other_client(store)

        async def attempt(number: int) -> bool:
            client = other if number % 2 else store
            try:
                await client.write([Change("a", value=str(number), expect=0)])
            except ConflictError:
                return False
            return True

        won = await asyncio.gather(*(attempt(number) for number in range(20)))
        assert won.count(True) == 1
        assert await store.get("a") == str(won.index(True))

    # Counters

    async def test_counters_add_up_and_leave_the_version(self, store: Store) -> None:
        await store.write([Change("a", value="1", add={"open": 1})])
        record = await self.one(store, Change("a", add={"open": 2, "ok": 1}))
        assert record == Record("a", "1", 1, {"open": 3, "ok": 1})
        record = await self.one(store, Change("a", add={"open": -4}))
        assert record.count("open") == -1
        assert record.count("never") == 0

    async def test_a_record_may_have_counters_and_no_value(self, store: Store) -> None:
        record = await self.one(store, Change("a", add={"n": 5}))
        assert record == Record("a", None, 0, {"n": 5})
        await store.write([Change("a", value="1", expect=0)])
        assert (await store.read(["a"]))[0] == Record("a", "1", 1, {"n": 5})

    async def test_a_fetched_record_is_as_after_the_write(self, store: Store) -> None:
        await store.write([Change("a", value="1", add={"n": 1})])
        assert await store.write([Change("a", add={"n": 1}, fetch=True)]) == [
            Record("a", "1", 1, {"n": 2})
        ]

    async def test_fifty_concurrent_increments_are_exact(self, store: Store) -> None:
        other = await self.other_client(store)
        clients = [store, other] * 25
        seen = await asyncio.gather(*(client.increment("a") for client in clients))
        assert sorted(seen) == list(range(1, 51))

    async def test_needed_counters_must_be_above_zero(self, store: Store) -> None:
        change = Change("a", add={"open": 1}, needs=("open",))
        assert await self.refused(store, [change]) == [Record("a")]
        await store.write([Change("a", add={"open": 1})])
        await store.write([change])
        await store.write([Change("a", add={"open": -2})])
        (record,) = await self.refused(store, [change])
        assert record.count("open") == 0

    async def test_all_needed_counters_must_be_above_zero(self, store: Store) -> None:
        await store.write([Change("a", add={"x": 1, "y": 0})])
        await self.refused(store, [Change("a", value="1", needs=("x", "y"))])
        await store.write([Change("a", value="1", needs=("x",))])
        assert await store.get("a") == "1"

    # Expiry

    async def test_a_record_past_its_ttl_is_absent_in_reads(self, store: Store) -> None:
        await store.write([Change("a", value="1", add={"n": 1}, ttl=self.ttl)])
        assert await store.get("a") == "1"
        await self.expire()
        assert await store.read(["a"]) == [Record("a")]

    async def test_a_record_past_its_ttl_is_absent_in_conditions(self, store: Store) -> None:
        await store.write([Change("a", value="1", add={"n": 1}, ttl=self.ttl)])
        await self.expire()
        assert await self.refused(store, [Change("a", value="2", expect=1)]) == [Record("a")]
        await self.refused(store, [Change("a", value="2", needs=("n",))])
        await store.write([Change("a", value="2", expect=0, ttl=0)])
        assert await store.read(["a"]) == [Record("a", "2", 1)]

    async def test_a_record_past_its_ttl_is_absent_in_lists(self, store: Store) -> None:
        await store.write([Change("a", value="1", ttl=self.ttl, index="i")])
        await store.write([Change("b", value="1", ttl=60, index="i")])
        await self.listed(store, "i", "b", "a")
        await self.expire()
        assert list((await store.list("i")).items) == ["b"]

    async def test_counters_start_again_after_the_ttl(self, store: Store) -> None:
        await store.write([Change("a", add={"n": 5, "m": 1}, ttl=self.ttl)])
        await self.expire()
        assert await self.one(store, Change("a", add={"n": 1})) == Record("a", None, 0, {"n": 1})

    async def test_the_version_starts_again_after_the_ttl(self, store: Store) -> None:
        await store.write([Change("a", value="1")])
        await store.write([Change("a", value="2", ttl=self.ttl)])
        await self.expire()
        assert (await self.one(store, Change("a", value="3"))).version == 1

    async def test_a_new_life_does_not_inherit_the_old_expiry(self, store: Store) -> None:
        await store.write([Change("a", value="1", ttl=self.ttl, index="i")])
        await self.expire()
        await store.write([Change("a", value="2")])
        await self.expire()
        assert await store.get("a") == "2"
        assert list((await store.list("i")).items) == []

    async def test_a_ttl_with_a_value_is_set_exactly(self, store: Store) -> None:
        await store.write([Change("a", value="1", ttl=3600)])
        await store.write([Change("a", value="2", ttl=self.ttl)])
        await self.expire()
        assert await store.get("a") is None

    async def test_a_ttl_without_a_value_never_shortens_the_life(self, store: Store) -> None:
        await store.write([Change("a", value="1", ttl=3600)])
        await store.write([Change("b", value="1")])
        for key in "ab":
            await store.write([Change(key, add={"n": 1}, ttl=self.ttl)])
        await self.expire()
        assert [await store.get(key) for key in "ab"] == ["1", "1"]

    async def test_a_ttl_without_a_value_lengthens_the_life(self, store: Store) -> None:
        await store.write([Change("a", value="1", ttl=self.ttl)])
        await store.write([Change("b", value="1", ttl=self.ttl)])
        await store.write([Change("a", add={"n": 1}, ttl=3600), Change("b", ttl=0)])
        await self.expire()
        assert [await store.get(key) for key in "ab"] == ["1", "1"]

    async def test_without_a_ttl_the_expiry_stays(self, store: Store) -> None:
        await store.write([Change("a", value="1", ttl=self.ttl)])
        await store.write([Change("a", value="2", add={"n": 1})])
        await self.expire()
        assert await store.get("a") is None

    async def test_a_ttl_of_zero_removes_the_expiry(self, store: Store) -> None:
        await store.write([Change("a", value="1", ttl=self.ttl)])
        await store.write([Change("a", value="2", ttl=0)])
        await self.expire()
        assert await store.get("a") == "2"

    # The index

    async def test_an_index_lists_the_latest_written_first(self, store: Store) -> None:
        for key in "abc":
            await store.write([Change(key, value="1", index="i")])
            await self.advance(self.tick)
        await self.listed(store, "i", "c", "b", "a")
        await store.write([Change("a", value="2", index="i")])
        await self.listed(store, "i", "a", "c", "b")

    async def test_a_value_moves_its_key_to_another_index(self, store: Store) -> None:
        await store.write([Change("a", value="1", index="pending")])
        await self.listed(store, "pending", "a")
        await store.write([Change("a", value="2", index="done")])
        await self.listed(store, "done", "a")
        await self.listed(store, "pending")

    async def test_a_value_without_an_index_is_listed_nowhere(self, store: Store) -> None:
        await store.write([Change("a", value="1", index="i")])
        await store.write([Change("a", value="2")])
        await self.listed(store, "i")

    async def test_counters_leave_the_index_as_it_is(self, store: Store) -> None:
        await store.write([Change("a", value="1", index="i")])
        await self.advance(self.tick)
        await store.write([Change("b", value="1", index="i")])
        await store.write([Change("a", add={"n": 1}, index="other", ttl=60)])
        await self.listed(store, "i", "b", "a")
        await self.listed(store, "other")

    async def test_an_unknown_index_is_empty(self, store: Store) -> None:
        page = await store.list("nothing")
        assert (list(page.items), page.cursor) == ([], None)

    async def test_pages_give_every_key_once(self, store: Store) -> None:
        keys = [f"key {number}" for number in range(25)]
        for key in keys:
            await store.write([Change(key, value="1", index="i")])
            await self.advance(self.tick / 10)
        await self.listed(store, "i", *reversed(keys))
        pages: list[list[str]] = []
        cursor = None
        while not pages or cursor is not None:
            page = await store.list("i", 10, cursor)
            pages.append(list(page.items))
            cursor = page.cursor
        assert [key for page in pages for key in page] == keys[::-1]
        assert all(len(page) <= 10 for page in pages)

    async def test_pages_stay_stable_while_keys_are_written(self, store: Store) -> None:
        for key in "abcdef":
            await store.write([Change(key, value="1", index="i")])
            await self.advance(self.tick)
        await self.listed(store, "i", *"fedcba")
        first = await store.list("i", 2)
        await store.write([Change("g", value="1", index="i")])
        await store.write([Change("e", delete=True)])
        await self.listed(store, "i", *"gfdcba")
        second = await store.list("i", 2, first.cursor)
        assert (list(first.items), list(second.items)) == (["f", "e"], ["d", "c"])

    # Deletion

    async def test_a_deleted_record_is_gone_with_all_it_had(self, store: Store) -> None:
        await store.write([Change("a", value="1", add={"n": 1}, index="i")])
        await store.write([Change("a", delete=True)])
        assert await store.read(["a"]) == [Record("a")]
        await self.listed(store, "i")
        assert await self.one(store, Change("a", value="2", expect=0)) == Record("a", "2", 1)

    async def test_a_conditional_delete_holds_only_at_that_version(self, store: Store) -> None:
        await store.write([Change("a", value="1")])
        await self.refused(store, [Change("a", expect=2, delete=True)])
        assert await store.get("a") == "1"
        await store.write([Change("a", expect=1, delete=True)])
        assert await store.get("a") is None

    async def test_deleting_an_absent_record_does_nothing(self, store: Store) -> None:
        await store.write([Change("a", delete=True)])
        assert await store.read(["a"]) == [Record("a")]

    # Many changes

    async def test_many_changes_are_made_together(self, store: Store) -> None:
        count = min(store.capabilities.max_changes, 50)
        changes = [Change(f"key {n}", value=str(n), expect=0) for n in range(count)]
        await store.write(changes)
        records = await store.read([change.key for change in changes])
        assert [record.value for record in records] == [str(n) for n in range(count)]

    async def test_nothing_is_written_where_one_condition_fails(self, store: Store) -> None:
        await store.write([Change("b", value="1"), Change("c", value="1", index="i")])
        await self.listed(store, "i", "c")
        await self.refused(
            store,
            [
                Change("a", value="2", add={"n": 1}, index="i"),
                Change("c", expect=1, delete=True),
                Change("b", value="2", expect=0),
            ],
        )
        assert await store.read(["a", "b", "c"]) == [
            Record("a"),
            Record("b", "1", 1),
            Record("c", "1", 1),
        ]
        await self.listed(store, "i", "c")

    async def test_a_conflict_carries_the_record_of_every_change(self, store: Store) -> None:
        await store.write([Change("b", value="1", add={"n": 2}), Change("c", value="1")])
        changes = [
            Change("a", value="2", expect=0),
            Change("b", value="2", expect=7),
            Change("c", value="2", expect=1),
        ]
        assert await self.refused(store, changes) == [
            Record("a"),
            Record("b", "1", 1, {"n": 2}),
            Record("c", "1", 1),
        ]

    async def test_a_write_that_names_a_key_twice_is_refused(self, store: Store) -> None:
        try:
            await store.write([Change("a", value="1"), Change("a", add={"n": 1})])
        except ConfigError as error:
            assert "a" in str(error)  # noqa: PT017
        else:
            raise AssertionError("not refused")
        assert await store.read(["a"]) == [Record("a")]

    async def test_concurrent_writes_over_several_records_never_mix(self, store: Store) -> None:
        other = await self.other_client(store)

        async def attempt(number: int) -> bool:
            client = other if number % 2 else store
            changes = [Change(key, value=str(number), expect=0) for key in "abc"]
            try:
                await client.write(changes if number % 3 else changes[::-1])
            except ConflictError:
                return False
            return True

        won = await asyncio.gather(*(attempt(number) for number in range(12)))
        assert won.count(True) == 1
        winner = str(won.index(True))
        assert [record.value for record in await store.read("abc")] == [winner] * 3

    # The helpers

    async def test_get_and_set(self, store: Store) -> None:
        assert await store.get("a") is None
        await store.set("a", "1", ttl=self.ttl)
        assert await store.get("a") == "1"
        await self.expire()
        assert await store.get("a") is None

    async def test_setting_without_a_ttl_keeps_for_ever(self, store: Store) -> None:
        await store.set("a", "1", ttl=self.ttl)
        await store.set("a", "2")
        await self.expire()
        assert await store.get("a") == "2"

    async def test_set_if_not_exists_is_true_once(self, store: Store) -> None:
        other = await self.other_client(store)
        clients = [store, other] * 5
        won = await asyncio.gather(
            *(client.set_if_not_exists("a", "1", ttl=self.ttl) for client in clients)
        )
        assert won.count(True) == 1
        await self.expire()
        assert await store.set_if_not_exists("a", "2")

    async def test_increment_counts_and_lengthens_the_life(self, store: Store) -> None:
        assert await store.increment("a", ttl=self.ttl) == 1
        assert await store.increment("a", 4, ttl=3600) == 5
        await self.expire()
        assert await store.increment("a", -2) == 3

    async def test_delete_removes(self, store: Store) -> None:
        await store.set("a", "1")
        await store.delete("a")
        await store.delete("a")
        assert await store.get("a") is None

    async def test_opening_and_closing_again_does_nothing(self, store: Store) -> None:
        await store.open()
        await store.open()
        await store.close()
        await store.close()
