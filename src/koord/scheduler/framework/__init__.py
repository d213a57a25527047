"""The scheduling framework: extension points, verdicts, and the evaluation of one class of equal pods over
all nodes.
"""
