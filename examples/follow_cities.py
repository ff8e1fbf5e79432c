"""Real cities go into a store, Spark follows its changes, adds them up, and writes the sums back.

    .venv/bin/python examples/follow_cities.py

Needs the extras `spark` and `demo`.  The store holds events that never change: people who live in
a city, and people who leave for another one.  A query follows them, and keeps the population of
each country in the same store; it goes on where it ended, and each of its batches is in the store
once, whenever it is killed.  An audit then adds up all events anew, and compares.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession, functions as f

import tidelog
from tidelog import codecs
from tidelog.pipeline import local_session

EVENT = "country string, people bigint"


def open_store(path: str) -> Any:
    """Open the store with its two maps: events by name, sums by country."""
    db = tidelog.open(path)
    events = db.map("events", key=codecs.Str, value=codecs.Json)
    countries = db.map("countries", key=codecs.Str, value=codecs.Json)
    return db, events, countries


def settle(path: str, cities: Sequence[dict[str, Any]]) -> None:
    """Record everybody who lives in these cities."""
    db, events, _ = open_store(path)
    with db:
        events.load(
            (f"city-{number}", {"country": city["country"], "people": city["population"]})
            for number, city in enumerate(cities)
        )


def move(path: str, cities: Sequence[dict[str, Any]], moves: int, seed: int) -> None:
    """Let people move: both sides of a move are one transaction."""
    rng = random.Random(seed)
    db, events, _ = open_store(path)
    with db:
        for number in range(moves):
            leave, arrive = rng.sample(cities, 2)
            people = rng.randint(1, 1 + leave["population"] // 10)
            name = f"move-{seed}-{number}"
            with db.transaction(tag=name) as tx:
                tx[events][f"{name}-from"] = {"country": leave["country"], "people": -people}
                tx[events][f"{name}-to"] = {"country": arrive["country"], "people": people}


def summed(frame: DataFrame) -> DataFrame:
    """Add up events by country."""
    event = f.from_json(f.col("value").cast("string"), EVENT)
    return (
        frame.where("namespace = 'events'")
        .select(event.alias("event"))
        .groupBy("event.country")
        .agg(f.sum("event.people").alias("people"), f.count("*").alias("events"))
    )


def follow(spark: SparkSession, path: str, state: str) -> int:
    """Carry the sums on to what the store holds now; return how many batches that took."""
    changes = (
        spark.readStream.format("tidelog")
        .options(path=path, view="changes", startingCounters="earliest")
        .option("maxChangesPerTrigger", "100000")
        .load()
    )
    rows = summed(changes).select(
        f.col("country").cast("binary").alias("key"),
        f.to_json(f.struct("people", "events")).cast("binary").alias("value"),
    )
    query = (
        rows.writeStream.format("tidelog")
        .options(path=path, namespace="countries")
        .option("checkpointLocation", state)
        .outputMode("complete")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return len(query.recentProgress)


def audit(spark: SparkSession, path: str) -> list[Any]:
    """Add up all events anew; return the countries for which that gives another sum."""
    snapshot = spark.read.format("tidelog").option("path", path).load()
    told = snapshot.where("namespace = 'countries'").select(
        f.col("key").cast("string").alias("country"),
        f.from_json(f.col("value").cast("string"), "people bigint, events bigint").alias("told"),
    )
    both = summed(snapshot).join(told, "country", "full_outer")
    wrong = "people is distinct from told.people or events is distinct from told.events"
    return both.where(wrong).collect()


def run(spark: SparkSession, folder: str, cities: Sequence[dict[str, Any]], moves: int) -> None:
    """Settle, follow, move, follow on, audit, and print the largest countries."""
    path, state = f"{folder}/cities.tl", f"{folder}/state"
    settle(path, cities)
    batches = follow(spark, path, state)
    print(f"{len(cities):,} cities followed in {batches} batches")
    for seed in (1, 2):
        move(path, cities, moves, seed)
        batches = follow(spark, path, state)
        print(f"{moves:,} moves followed in {batches} batches")
    wrong = audit(spark, path)
    print(f"audit: {len(wrong)} countries differ")
    db, _, countries = open_store(path)
    with db:
        largest = sorted(countries.items(), key=lambda item: -item[1]["people"])[:5]
        for country, sums in largest:
            print(f"{country}  {sums['people']:>13,} people  {sums['events']:>6,} events")
    if wrong:
        sys.exit(3)


def main() -> None:
    """Run with the cities of GeoNames."""
    from tidelog.tools.demo.data import load_cities

    spark = local_session(spark__ui__enabled="false", spark__sql__shuffle__partitions="4")
    with tempfile.TemporaryDirectory() as folder:
        run(spark, str(Path(folder).resolve()), list(load_cities().values()), moves=1000)
    spark.stop()


if __name__ == "__main__":
    main()
