"""`koord migrate-from-koordinator`: what of Koordinator a cluster has, what koord changes of it, and the commands of
the move and of the way back.

`command` reads a cluster into the frozen `facts`, which know what becomes of each object; `program_arguments` and
`chart_values` are pure functions from them; `report` concludes and tells. Nothing here writes to a cluster: the
move is the chart's, so that Helm knows it and can undo it.
"""
