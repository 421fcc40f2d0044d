//! How patient the gate is with a scheduler. Durations only: who waits is
//! elsewhere, and which are usual for which scheduler the configuration says.

use std::time::Duration;

/// How long what may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerTimeouts {
    /// One call.
    pub limit: Duration,
    /// Until a change shows.
    pub settle: Duration,
    /// Until a change that shows is kept: on the disk of Slurm's controller.
    pub persist: Duration,
    /// How long a change may still be carried out whose sender is gone.
    pub in_flight: Duration,
}
