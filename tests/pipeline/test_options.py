"""Options and offsets: what they mean, and what bad ones say."""

from __future__ import annotations

import json

import pytest

import tidelog
from tidelog.affinity.errors import UsageError
from tidelog.pipeline.base import vectors
from tidelog.pipeline.plan.options import ReadOptions, parse, parse_load, parse_write
from tidelog.pipeline.plan.reads import fields_of

STORE, HISTORY = b"s" * 16, b"h" * 16


def test_names_of_options_have_no_case() -> None:
    options = parse({"PATH": "/s", "View": "changes", "batchrows": "7", "INCLUDEROLLBACKS": "True"})
    assert options == ReadOptions(view="changes", paths=("/s",), batch_rows=7, rollbacks=True)


def test_paths_may_be_several() -> None:
    assert parse({"path": '["/a", "file:/b"]'}).paths == ("/a", "/b")


def test_a_list_of_paths_as_spark_hands_it_over_is_one() -> None:
    # `load([...])` could not be read.
    assert parse({"paths": '["/a","/b"]'}).paths == ("/a", "/b")


def test_what_sparks_catalog_adds_to_the_options_of_a_table_is_left_out() -> None:
    # It had no option 'owner', 'location', 'provider'.
    table = {"provider": "tidelog", "owner": "me", "location": "file:/s", "option.view": "wal"}
    assert parse({**table, "view": "wal"}) == parse({"view": "wal", "path": "/s"})
    assert parse({**table, "view": "wal", "path": "/t"}).paths == ("/t",)


def test_a_uri_is_never_taken_for_a_relative_path() -> None:
    # It became "/here/hdfs:/h/x", where there was nothing.
    assert parse({"path": "file:///s"}).paths == ("/s",)
    for uri in ("hdfs://h/x", "s3://b/x", "S3A://b/x", "abfss://c@a.net/x"):
        assert parse({"path": uri + "/"}).paths == (uri,)
        assert parse({"path": json.dumps(["/a", uri])}).paths == ("/a", uri)
        with pytest.raises(UsageError, match="is a URI, and a local path is needed"):
            parse_write({"path": uri})
        with pytest.raises(UsageError, match="a local path is needed"):
            parse_load({"path": uri})
        with pytest.raises(UsageError, match="is a URI"):
            tidelog.open(uri)


@pytest.mark.parametrize(
    ("given", "stream", "said"),
    [
        ({}, False, "the option path is missing"),
        ({"path": "/s", "view": "lag"}, False, "no view 'lag'"),
        ({"path": "/s", "bootstrap": "host:1"}, False, "no option 'bootstrap'"),
        ({"path": "/s", "view": "wal", "namespace": "m"}, False, "no option 'namespace'"),
        ({"path": "/s", "view": "changes", "endingCounters": "latest"}, True, "in a stream"),
        ({"path": "/s", "view": "changes", "maxChangesPerTrigger": "1"}, False, "no option"),
        ({"path": "/s", "partitions": "3-x"}, False, "option partitions='3-x': numbers and ranges"),
        ({"path": "/s", "partitions": "0-999999999"}, False, "more than 32,768 partitions"),
        ({"path": "/s", "partitions": f"{'9' * 5000}"}, False, "more than 32,768 partitions"),
        ({"path": "/s", "partitions": "7-3"}, False, "7-3 ends before it begins"),
        ({"path": "/s", "paths": '["/a"]'}, False, "path and paths exclude each other"),
        ({"path": "/s", "batchRows": "0"}, False, "option batchRows='0': at least 1"),
        ({"path": "/s", "view": "wal", "mode": "LAX"}, False, "FAILFAST or PERMISSIVE"),
        ({"path": "/s", "view": "changes", "failOnDataLoss": "no"}, False, "true or false"),
        ({"path": "/s", "view": "changes", "startingCounters": "1"}, False, "earliest, latest"),
        ({"path": "/s", "view": "changes", "startingCounters": "{"}, False, "startingCounters"),
        ({"path": "[]"}, False, "a list of paths"),
        ({"path": "/s", "columns": "key,key"}, False, "each once"),
    ],
)
def test_a_bad_option_says_which_and_what_is_right(
    given: dict[str, str], stream: bool, said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        parse(given, stream=stream)
    assert said in str(caught.value)


def test_an_unknown_option_lists_the_valid_ones() -> None:
    with pytest.raises(UsageError) as caught:
        parse({"path": "/s", "view": "wal", "nonsense": "1"})
    assert caught.value.hint is not None
    assert "path, columns, batchRows, maxBytesPerTask, minPartitions, mode" in caught.value.hint


def test_columns_are_in_the_order_asked_for() -> None:
    fields = fields_of(parse({"path": "/s", "columns": "value, key"}))
    assert fields == [("value", "binary"), ("key", "binary")]
    with pytest.raises(UsageError, match="no column keys"):
        fields_of(parse({"path": "/s", "columns": "keys"}))


def test_a_vector_is_the_same_text_whatever_its_order() -> None:
    one = vectors.encode(STORE, HISTORY, {1: (1, 5), 0: (2, 7)})
    assert one == vectors.encode(STORE, HISTORY, {0: (2, 7), 1: (1, 5)})
    assert list(one["p"]) == ["0", "1"]
    assert vectors.decode(one, STORE, HISTORY) == {0: (2, 7), 1: (1, 5)}


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"v": 2, "p": {}},
        {"v": 1, "p": []},
        {"v": 1, "store": STORE.hex(), "history": "00", "p": {}},
        {"v": 1, "store": "00", "history": HISTORY.hex(), "p": {}},
        {"v": 1, "store": STORE.hex(), "history": HISTORY.hex(), "p": {"x": [1, 2]}},
        {"v": 1, "store": STORE.hex(), "history": HISTORY.hex(), "p": {"0": [1]}},
        {"v": 1, "store": STORE.hex(), "history": HISTORY.hex(), "p": {"0": [1, -2]}},
        {"v": 1, "store": STORE.hex(), "history": HISTORY.hex(), "p": {"0": [1, "2"]}},
    ],
)
def test_what_is_no_offset_of_this_store_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        vectors.decode(data, STORE, HISTORY)
