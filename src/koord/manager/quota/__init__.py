"""The quota tree of the running program: fed by watches, asked by webhooks, and the writer of admitted requests."""
