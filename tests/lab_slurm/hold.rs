//! Measuring through a real Slurm: jobs and reservations that hold nodes, busy and
//! drained nodes, and what is left after a crash.
