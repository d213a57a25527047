"""What a workload will need, judged by what it used: decaying histograms and the estimates made from them. Pure."""
