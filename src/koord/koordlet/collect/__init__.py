"""From the machine's files to samples. Each collector works, and fails, alone; decisions are made elsewhere."""
