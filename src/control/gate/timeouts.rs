//! Timeouts of the gate's scheduler calls. Durations only: the callers do the waiting,
//! and the configuration sets the defaults for each scheduler.

use std::time::Duration;

/// Timeouts for scheduler calls and for the changes they make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerTimeouts {
    /// For one call.
    pub limit: Duration,
    /// Until a change becomes visible.
    pub settle: Duration,
    /// Until a visible change is persisted, for Slurm in the controller's state files.
    pub persist: Duration,
    /// How long the scheduler may still apply a change after its sender is gone.
    pub in_flight: Duration,
}
