"""Another key for the sealed bodies (S10): under load, with ids, and with nothing sent again."""

from __future__ import annotations

import asyncio
import json
import secrets
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from proxy.app import SEALED_AT_ONCE
from proxy.ledger.base import Damaged, WrongKey
from proxy.ledger.seal import ID_BYTES, Sealer, key_id
from tests import reliability
from tests.fakes.upstream import ToyApi
from tests.fakes.whole import Door, assert_refused, outcome, toy_rules, whole

PART = "Security"


def ids(state: Path) -> set[bytes]:
    """The keys under which bodies are sealed."""
    with closing(sqlite3.connect(state / "ledger.db")) as db:
        sql = "SELECT DISTINCT substr(sealed, 1, ?) FROM contents WHERE sealed IS NOT NULL"
        return {row[0] for row in db.execute(sql, (ID_BYTES,))}


def sealed_under(state: Path) -> list[str]:
    """The ids of the keys that a start asks for."""
    with closing(sqlite3.connect(state / "ledger.db")) as db:
        row = db.execute("SELECT value FROM meta WHERE name = 'sealed_under'").fetchone()
    found = json.loads(row[0])
    assert isinstance(found, list)
    return found


async def refund(door: Door, toy: ToyApi, number: int) -> str:
    got = await door.call(
        toy.url + "/refunds", {"reference": f"r{number}", "amount": 1}, "run", f"s{number}"
    )
    assert got.status == 201, got.body
    return outcome(got)


async def test_a_key_is_changed_under_load_and_every_answer_is_still_there(tmp_path: Path) -> None:
    toy = ToyApi()
    await toy.start()
    state, key_file = tmp_path / "state", tmp_path / "ledger-key"
    first, second = secrets.token_bytes(32), secrets.token_bytes(32)
    options = {"ledger": {"key_file": str(key_file)}}
    key_file.write_text(first.hex() + "\n")
    try:
        many = SEALED_AT_ONCE + 5  # so that it takes several pieces
        async with whole(tmp_path, toy_rules(toy.url), **options) as door:
            await asyncio.gather(*(refund(door, toy, n) for n in range(many)))
        assert ids(state) == {key_id(first)}

        key_file.write_text(f"{second.hex()}\n{first.hex()}\n")
        async with whole(tmp_path, toy_rules(toy.url), **options) as door:
            number, news = 0, 0
            while sealed_under(state) != [key_id(second).hex()]:
                assert await refund(door, toy, number % many) == "replayed"
                assert await refund(door, toy, many + number) == "sent"
                number, news = number + 1, news + 1
                assert number < 400
        with_both = ids(state)

        key_file.write_text(f"{second.hex()}\n")
        async with whole(tmp_path, toy_rules(toy.url), **options) as door:
            for number in range(many + news):
                assert await refund(door, toy, number) == "replayed"
        assert with_both == ids(state) == {key_id(second)}
        assert sum(toy.effects.counts().values()) == many + news
        assert max(toy.requests.values()) == 1
    finally:
        await toy.close()
    reliability.figure(
        "S10",
        "another ledger key under load",
        part=PART,
        bodies=2 * (many + news),
        sent_again=0,
        unreadable=0,
    )


async def test_a_key_that_is_still_needed_is_asked_for(tmp_path: Path) -> None:
    toy = ToyApi()
    await toy.start()
    first, second = (secrets.token_bytes(32) for _ in range(2))
    key_file = tmp_path / "ledger-key"
    options = {"ledger": {"key_file": str(key_file)}}
    try:
        key_file.write_text(first.hex())
        async with whole(tmp_path, toy_rules(toy.url), **options) as door:
            await refund(door, toy, 1)
        for text in (second.hex(), f"{second.hex()}\n{secrets.token_hex(32)}"):
            key_file.write_text(text)
            with pytest.raises(WrongKey):
                async with whole(tmp_path, toy_rules(toy.url), **options):
                    pass
        # Both, and taken away again before everything was sealed anew.
        key_file.write_text(f"{second.hex()}\n{first.hex()}")
        with closing(sqlite3.connect(tmp_path / "state" / "ledger.db")) as db:
            canary = db.execute("SELECT value FROM meta WHERE name = 'canary'").fetchone()[0]
        assert canary[:ID_BYTES] == key_id(first)
        from proxy.clock import SystemClock
        from proxy.ledger.sqlite import SqliteLedger

        ledger = SqliteLedger(
            tmp_path / "state" / "ledger.db", key=(second, first), clock=SystemClock()
        )
        await ledger.open()
        digests = ledger.digest_key
        await ledger.close()
        key_file.write_text(second.hex())
        with pytest.raises(WrongKey, match=key_id(first).hex()):
            async with whole(tmp_path, toy_rules(toy.url), **options):
                pass
        key_file.write_text(f"{second.hex()}\n{first.hex()}")
        async with whole(tmp_path, toy_rules(toy.url), **options) as door:
            assert await refund(door, toy, 1) == "replayed"
        assert toy.requests["r1"] == 1
        assert len(digests) == 32
    finally:
        await toy.close()


@pytest.mark.parametrize("what", ["swapped", "a bit", "cut", "another key's id", "gone"])
async def test_a_body_that_is_not_its_own_is_never_replayed_and_never_sent_again(
    tmp_path: Path, what: str
) -> None:
    toy = ToyApi()
    await toy.start()
    try:
        async with whole(tmp_path, toy_rules(toy.url)) as door:
            for number in range(2):
                await refund(door, toy, number)
        with closing(sqlite3.connect(tmp_path / "state" / "ledger.db")) as db:
            rows = db.execute("SELECT id, kind, sealed FROM contents ORDER BY id").fetchall()
            answers = [(n, sealed) for n, kind, sealed in rows if kind == "answer"]
            assert len(answers) == 2
            (one, sealed), (_, other) = answers
            flipped = bytearray(sealed)
            flipped[len(flipped) // 2] ^= 1
            spoiled = {
                "swapped": other,
                "a bit": bytes(flipped),
                "cut": sealed[:-1],
                "another key's id": b"\0\0\0\0" + sealed[ID_BYTES:],
                "gone": None,
            }[what]
            if what == "gone":
                db.execute("DELETE FROM contents WHERE id = ?", (one,))
            else:
                db.execute("UPDATE contents SET sealed = ? WHERE id = ?", (spoiled, one))
            db.commit()
        async with whole(tmp_path, toy_rules(toy.url)) as door:
            body = {"reference": "r0", "amount": 1}
            got = await door.call(toy.url + "/refunds", body, "run", "s0")
            assert toy.requests["r0"] == 1
            assert_refused(got, 424, "outcome-unresolved")
            assert await refund(door, toy, 1) == "replayed"
    finally:
        await toy.close()
    reliability.figure(
        "S10", "sealed bodies spoiled", part=PART, bodies=1, replayed=0, sent_again=0
    )


def test_several_keys_open_and_the_first_seals() -> None:
    old, new = Sealer(bytes(32)), Sealer([b"x" * 32, bytes(32)])
    sealed = old.seal(b"secret", "a")
    assert new.unseal(sealed, "a") == b"secret"
    again = new.seal(b"secret", "a")
    assert again[:ID_BYTES] == key_id(b"x" * 32)
    with pytest.raises(Damaged, match="key file does not hold"):
        old.unseal(again, "a")
