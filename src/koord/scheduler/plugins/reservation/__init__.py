"""Reservation schedules Reservations like pods, and gives their room on the node to their owners."""

from koord.scheduler.plugins.reservation.plugin import ReservationPlugin

__all__ = ["ReservationPlugin"]
