"""How a write changes an object: the four patch types, server-side apply, and who owns which field."""
