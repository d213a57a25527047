"""The scheduler's imperative side: watches go in, bindings and messages go out; decisions are made elsewhere."""
