"""Backup, check, salvage, and the loads that are attached."""
