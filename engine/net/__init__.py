"""The way between members, and from clients to members: frames, kinds, handshakes, links."""
