//! Slurm through slurmrestd.
//!
//! What an answer means, `inventory::slurm::live` says: the nodes of both ways
//! are written alike.
