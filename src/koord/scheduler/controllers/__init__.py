"""Run the controllers of plugins while this scheduler leads: they keep the objects of their feature up to date."""
