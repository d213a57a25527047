"""Room that is kept for pods yet to come: scheduled like pods, given back on its node to those whom it is for."""

from koord.scheduler.plugins.reservation.plugin import ReservationPlugin

__all__ = ["ReservationPlugin"]
