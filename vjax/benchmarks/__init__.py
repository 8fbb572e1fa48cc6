"""`vjax bench serve`, `latency`, `throughput` and `startup`."""
