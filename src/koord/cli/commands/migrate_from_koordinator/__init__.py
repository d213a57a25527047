"""`koord migrate-from-koordinator`: what of Koordinator a cluster has, what koord changes of it, and the commands of
the move and of the way back.

`gather` reads a cluster into frozen facts; `inventory`, `program_arguments`, `component_config`, `chart_values` and
`findings` are pure functions from them; `report` puts their answers together. Nothing here writes to a cluster: the
move is the chart's, so that Helm knows it and can undo it.
"""
