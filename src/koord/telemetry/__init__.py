"""This package holds what a program reports about itself, and its time: clock, logging, metrics, health and the
component server.
"""
