"""The grammar of a scheduling cycle: points, verdicts, the evaluation of one class of pods over all nodes."""
