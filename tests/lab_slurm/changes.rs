//! What a real Slurm makes of changes: drains that get lost, reasons that it edits,
//! lists that are applied in part, answers that come too late.
