"""Making room for a pod that fits nowhere: which pods must go from which node. Pure; others carry it out."""
