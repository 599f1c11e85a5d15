"""Hardware: the GPU drivers, each behind one module, and the processes of this host."""
