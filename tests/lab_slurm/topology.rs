//! Features, free fields and topologies on a real Slurm: what it forgets, and what
//! is put back.
