"""Native code for CPUs: C++ called from compiled graphs through XLA's FFI."""
