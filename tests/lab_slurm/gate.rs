//! The whole gate on a real Slurm: a fault found, drained, repaired, measured
//! again and returned, and an operator's own drain left alone.
