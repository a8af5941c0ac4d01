"""Runs in a database: SQLite by URL, and a real PostgreSQL that the tests start."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kvrewind.recorder.errors import BadInput, MissingTrace, NewerFormat, OutputExists
from kvrewind.recorder.events import Envelope, RunEnded
from kvrewind.recorder.jsonl import read_jsonl
from kvrewind.recorder.reader import TraceReader
from kvrewind.recorder.stores import tables
from kvrewind.recorder.stores.address import RunAddress, place_of
from kvrewind.recorder.stores.connection import BadStore
from kvrewind.recorder.stores.create import create_store
from kvrewind.recorder.stores.stored_run import list_runs
from kvrewind.recorder.writer import TraceWriter
from postgres_server import PASSWORD, NoPostgres, PostgresServer
from sqlalchemy import create_engine, inspect, text

RECORDED = Path(__file__).parents[1] / "data" / "one_step.jsonl"


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    try:
        server = PostgresServer()
    except NoPostgres as why:
        pytest.skip(str(why))
    server.start()
    yield server
    server.stop()
    server.remove()


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'fleet.db'}"
    return request.getfixturevalue("postgres").database()


@pytest.fixture
def envelopes() -> list[Envelope]:
    return list(read_jsonl(RECORDED))


def record(url: str, envelopes: list[Envelope]) -> TraceWriter:
    with TraceWriter(url) as writer:
        writer.write_envelopes(envelopes)
    return writer


def test_a_run_in_a_database_reads_as_the_file_would(
    store: str, envelopes: list[Envelope], tmp_path: Path
) -> None:
    assert record(f"{store}?run=a", envelopes).failure is None
    record(str(tmp_path / "a.kvtrace"), envelopes)
    with TraceReader(f"{store}?run=a") as stored, TraceReader(tmp_path / "a.kvtrace") as file:
        assert list(stored.envelopes()) == list(file.envelopes()) == envelopes
        assert stored.digests() == file.digests()
        assert stored.problems == []
        assert stored.complete
        assert stored.verify_chain() is None
        assert stored.spans() == file.spans()
        blocks = [list(trace.find(block=0)) for trace in (stored, file)]
        assert blocks[0] == blocks[1] != []
        assert stored.position("1:5") == 5


def test_runs_of_one_database_do_not_mix(store: str, envelopes: list[Envelope]) -> None:
    record(f"{store}?run=whole", envelopes)
    record(f"{store}?run=half", envelopes[:20])
    with TraceReader(f"{store}?run=half") as half:
        assert half.count == 20
        assert not half.complete
        assert any("incomplete" in problem or "end" in problem for problem in half.problems)
    with TraceReader(f"{store}?run=whole") as whole:
        assert whole.count == len(envelopes)
    entries = list_runs(address(store))
    assert [(e.name, e.last_seq, e.complete) for e in entries] == [
        ("whole", len(envelopes) - 1, True),
        ("half", 19, False),
    ]


def test_several_writers_record_into_one_database_at_once(
    store: str, envelopes: list[Envelope]
) -> None:
    failures: list[object] = []

    def run(number: int) -> None:
        try:
            failures.append(record(f"{store}?run=r{number}", envelopes * 1).failure)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [None] * 4
    for number in range(4):
        with TraceReader(f"{store}?run=r{number}") as trace:
            assert list(trace.envelopes()) == envelopes


def test_a_database_is_asked_in_sql_as_a_file_is(store: str, envelopes: list[Envelope]) -> None:
    record(f"{store}?run=a", envelopes)
    record(f"{store}?run=b", envelopes[:20])
    question = "select seq from events where run = 1 and block = 0 order by seq"
    engine = create_engine(store)
    with engine.connect() as connection:
        seqs = [row.seq for row in connection.execute(text(question))]
    engine.dispose()
    expected = [e.seq for e in envelopes if getattr(e.event, "block", None) == 0]
    assert seqs == expected != []


def test_a_run_without_a_name_is_given_one(store: str, envelopes: list[Envelope]) -> None:
    writers = [record(store, envelopes) for _ in range(2)]
    names = [writer.path.name for writer in writers]
    assert len(set(names)) == 2
    assert [entry.name for entry in list_runs(address(store))] == names


def test_a_run_is_not_written_over_without_force(store: str, envelopes: list[Envelope]) -> None:
    record(f"{store}?run=a", envelopes)
    with pytest.raises(OutputExists):
        TraceWriter(f"{store}?run=a")
    with TraceWriter(f"{store}?run=a", force=True) as writer:
        writer.write_envelopes(envelopes[:20])
    with TraceReader(f"{store}?run=a") as trace:
        assert trace.count == 20


def test_a_run_that_is_replaced_while_it_is_written_stops_and_says_so(
    store: str, envelopes: list[Envelope]
) -> None:
    old = TraceWriter(f"{store}?run=a")
    old.write_envelopes(envelopes[:20])
    with TraceWriter(f"{store}?run=a", force=True) as new:
        old.write_envelopes(envelopes[20:])
        old.close()
        new.write_envelopes(envelopes)
    assert old.failure is not None and "removed or replaced" in str(old.failure)
    with TraceReader(f"{store}?run=a") as trace:
        assert list(trace.envelopes()) == envelopes
        assert trace.problems == []


def test_what_a_run_is_not_named_by_is_said(store: str, envelopes: list[Envelope]) -> None:
    record(f"{store}?run=a", envelopes)
    with TraceReader(store) as only:
        assert only.path == address(store).of_run("a")
    record(f"{store}?run=b", envelopes)
    with pytest.raises(BadInput, match="several runs, b the newest"):
        TraceReader(store)
    with pytest.raises(BadInput, match="no run of that name"):
        TraceReader(f"{store}?run=c")


def test_a_run_of_a_newer_format_is_refused(store: str, envelopes: list[Envelope]) -> None:
    record(f"{store}?run=a", envelopes)
    execute(store, "update runs set format = 99")
    with pytest.raises(NewerFormat, match="format 99"):
        TraceReader(f"{store}?run=a")


def test_a_changed_row_breaks_the_chain_and_what_is_before_it_stays(
    store: str, envelopes: list[Envelope]
) -> None:
    later = [e._replace(seq=e.seq + 100, step=e.step + 10) for e in envelopes[1:]]
    gap = [e for e in later if not isinstance(e.event, RunEnded)]
    record(f"{store}?run=a", [*envelopes[:-1], *gap])
    execute(store, f"update events set payload = :bad where seq = {gap[5].seq}", bad=b"\xc1")
    with TraceReader(f"{store}?run=a") as trace:
        assert f"{gap[5].position} is no event" in trace.problems[0]
        assert list(trace.envelopes()) == envelopes[:-1]


def test_other_programs_tables_are_left_alone(store: str, envelopes: list[Envelope]) -> None:
    execute(store, "create table events (id integer primary key)")
    with pytest.raises(BadStore, match="another program's"):
        TraceWriter(store)
    with pytest.raises(BadStore, match="no runs of kvrewind"):
        TraceReader(store)
    engine = create_engine(store)
    assert inspect(engine).get_table_names() == ["events"]
    engine.dispose()


def test_a_lost_server_stops_the_recording_and_keeps_what_was_committed(
    postgres: PostgresServer, envelopes: list[Envelope]
) -> None:
    url = postgres.database()
    writer = TraceWriter(f"{url}?run=a")
    later = [e._replace(seq=e.seq + 52, step=e.step + 9) for e in envelopes[1:]]
    writer.write_envelopes([*envelopes[:-1], later[0]])
    while writer.steps < len({e.step for e in envelopes}):
        threading.Event().wait(0.01)
    postgres.stop()
    try:
        for envelope in later[1:]:
            writer.emit(envelope.event, envelope.step)
        writer.close()
    finally:
        postgres.start()
    assert writer.failure is not None
    said = str(writer.failure)
    assert "run=a stopped" in said and "see to the database" in said
    assert PASSWORD not in said and "\n" not in said
    with TraceReader(f"{url}?run=a") as trace:
        assert list(trace.envelopes()) == envelopes[:-1]
        assert not trace.complete
        assert trace.verify_chain() is None


@pytest.mark.parametrize("how", ["wrong password", "no server", "no database"])
def test_a_store_out_of_reach_is_refused_without_its_password(
    how: str, postgres: PostgresServer
) -> None:
    url = {
        "wrong password": postgres.url("postgres", "not-the-password"),
        "no server": f"postgresql+psycopg://u:{PASSWORD}@127.0.0.1:1/fleet",
        "no database": postgres.url("nowhere"),
    }[how]
    for use in (TraceWriter, TraceReader, lambda url: list_runs(address(url))):
        with pytest.raises(BadStore) as refused:
            use(url)
        assert PASSWORD not in str(refused.value)
        assert "not-the-password" not in str(refused.value)
        assert "\n" not in str(refused.value)


def test_no_password_is_in_the_database(
    postgres: PostgresServer, envelopes: list[Envelope]
) -> None:
    url = postgres.database()
    record(f"{url}?run=a", envelopes)
    engine = create_engine(url)
    with engine.connect() as connection:
        for table in tables.metadata.sorted_tables:
            assert PASSWORD not in str(connection.execute(table.select()).all())
    engine.dispose()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nosuch://host/db", "knows no nosuch"),
        ("sqlite://", "in memory"),
        ("postgresql+psycopg://u:se@cret@h/db", "as %40"),
        ("postgresql+psycopg://u:secret@h:port/db", "can't be understood"),
        ("sqlite:///x.db?run=a&run=b", "one run"),
    ],
)
def test_what_is_no_store_is_said_in_a_sentence(url: str, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        TraceWriter(url)
    assert said in str(refused.value)
    assert "cret" not in str(refused.value)


def test_a_missing_driver_is_named_with_what_to_install() -> None:
    script = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from kvrewind.tui.cli import run\n"
        "sys.exit(run(['check', 'postgresql+psycopg://u:hush@h/db?run=a']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'kvrewind[postgres]'" in done.stderr
    assert "hush" not in done.stderr and done.stderr.count("\n") == 1


def test_reading_makes_no_database(tmp_path: Path) -> None:
    path = tmp_path / "absent.db"
    with pytest.raises(MissingTrace):
        TraceReader(f"sqlite:///{path}?run=a")
    assert not path.exists()


def test_an_address_hides_every_secret_and_keeps_the_rest() -> None:
    place = address("postgresql+psycopg://me:hush@h:5/db?run=a b&sslpassword=hush&options=-cx")
    assert place.run == "a b" and place.name == "a b"
    assert "hush" not in str(place)
    assert str(place) == ("postgresql+psycopg://me:***@h:5/db?options=-cx&run=a+b&sslpassword=***")
    assert place_of(Path("a/b.kvtrace")) == Path("a/b.kvtrace")


def address(url: str) -> RunAddress:
    place = place_of(url)
    assert isinstance(place, RunAddress)
    return place


def execute(url: str, statement: str, **values: object) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(statement), values)
    engine.dispose()


def test_what_the_driver_does_not_know_in_a_url_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadStore, match="'colour' are not accepted") as refused:
        create_store(place_of(f"sqlite:///{tmp_path}/runs.db?run=b&colour=red"), force=False)
    assert "\n" not in str(refused.value) and "http" not in str(refused.value)
