"""This package holds what a program reports about itself: logging, metrics, health, component server; and the clock."""
