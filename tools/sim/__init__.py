"""``tidelog sim``: storms of faults over simulated clusters."""
