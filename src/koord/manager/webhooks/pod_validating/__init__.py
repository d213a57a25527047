"""What koord refuses of a pod: classes that contradict each other, parent quotas, GPU shapes, missing labels."""
