"""The data of a store, a copy or an archive at a cut."""
