"""The scheduling framework: extension points, verdicts, and the evaluation of a class of equal pods."""
