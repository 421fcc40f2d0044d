//! Plans carried out on a real Slurm, and the program killed at every step of it.
