"""Predict resource needs from past usage: decaying histograms and the estimates made from them. Pure."""
