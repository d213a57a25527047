"""The node agent: measures, decides and keeps pods apart. Its decisions are pure; files and calls are the shell's."""
