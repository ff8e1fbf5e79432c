"""The write-ahead log: records, frames, segments, how its end is judged, what may be dropped."""
