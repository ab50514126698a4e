"""The simulator's profiles beside what operators measured: the same loads on the pure engine, row by row."""
