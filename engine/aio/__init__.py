"""The handles that the tasks of a loop get, under Trio and under asyncio."""
