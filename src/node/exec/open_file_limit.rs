//! Limits of open files, and how many worker sessions they allow.
//!
//! Each session holds four files for as long as its node is in use. When the soft limit is too low,
//! fabricgate raises it up to the hard limit, and starts child processes with the original limit:
//! `srun` carries limits to its nodes, and old programs close as many files as the limit allows.
//! Part of the limit is reserved for writing results.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::process::Command;

use crate::ffi::process_limits;

/// Files of one session: three pipes and the process handle.
const FILES_PER_SESSION: u64 = 4;

/// Upper bound of the reserve for other files; a low limit reserves half of itself. A session may
/// have two result files open for writing.
const MAX_RESERVED_FILES: u64 = 1_024;

/// Upper bound of the soft limit whatever the hard limit: the kernel's default `fs.nr_open`.
const MAX_SOFT_LIMIT: u64 = 1 << 20;

/// Slots in use, and the original limit once it was raised.
static SLOTS: Mutex<SessionSlotCount> =
    Mutex::new(SessionSlotCount { in_use: 0, original_limit: None });

#[derive(Debug)]
struct SessionSlotCount {
    in_use: u64,
    original_limit: Option<Rlimit>,
}

/// A slot for one session, until it is dropped.
#[derive(Debug)]
pub(super) struct SessionSlot(());

/// No slot is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a limit of {limit} open files allows only {most} workers: raise the hard limit \
     (`ulimit -Hn`, LimitNOFILE= in units), or measure fewer nodes per run"
)]
pub(super) struct OpenFileLimitError {
    limit: u64,
    /// Workers that it allows.
    most: u64,
}

impl SessionSlot {
    pub(super) fn acquire() -> Result<Self, OpenFileLimitError> {
        let mut held = lock_slots();
        let now = getrlimit(Resource::Nofile);
        match decide_limit(held.in_use + 1, &now) {
            LimitDecision::Fits => {}
            LimitDecision::Raise(soft) => {
                let raised = Rlimit { current: Some(soft), maximum: now.maximum };
                // If this is refused, the system's own error reports the failure.
                if setrlimit(Resource::Nofile, raised).is_ok() {
                    held.original_limit.get_or_insert(now);
                }
            }
            LimitDecision::TooMuch(full) => return Err(full),
        }
        held.in_use += 1;
        Ok(Self(()))
    }
}

impl Drop for SessionSlot {
    fn drop(&mut self) {
        let mut held = lock_slots();
        held.in_use = held.in_use.saturating_sub(1);
    }
}

/// Gives a child process the limit that fabricgate started with.
pub(super) fn restore_limit(command: &mut Command) {
    if let Some(given) = lock_slots().original_limit {
        process_limits::set_child_limit(command, Resource::Nofile, given);
    }
}

/// How many concurrent sessions the limit allows; `None` if unlimited.
pub fn max_sessions() -> Option<u64> {
    getrlimit(Resource::Nofile).maximum.map(sessions_within)
}

fn lock_slots() -> MutexGuard<'static, SessionSlotCount> {
    SLOTS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn sessions_within(limit: u64) -> u64 {
    (limit - reserved_files(limit)) / FILES_PER_SESSION
}

fn reserved_files(limit: u64) -> u64 {
    MAX_RESERVED_FILES.min(limit / 2)
}

/// Decision about one more session.
#[derive(Debug, PartialEq, Eq)]
enum LimitDecision {
    Fits,
    Raise(u64),
    TooMuch(OpenFileLimitError),
}

fn decide_limit(wanted: u64, now: &Rlimit) -> LimitDecision {
    let fits = |limit: Option<u64>| limit.is_none_or(|limit| wanted <= sessions_within(limit));
    if fits(now.current) {
        return LimitDecision::Fits;
    }
    match now.maximum {
        Some(limit) if !fits(now.maximum) => {
            LimitDecision::TooMuch(OpenFileLimitError { limit, most: sessions_within(limit) })
        }
        hard => LimitDecision::Raise(hard.map_or(MAX_SOFT_LIMIT, |hard| hard.min(MAX_SOFT_LIMIT))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(soft: u64, hard: Option<u64>) -> Rlimit {
        Rlimit { current: Some(soft), maximum: hard }
    }

    #[test]
    fn a_limit_is_raised_if_needed_and_allowed() {
        // systemd's defaults: soft 1,024 and hard 524,288.
        let usual = limits(1_024, Some(524_288));
        assert_eq!(decide_limit(128, &usual), LimitDecision::Fits);
        assert_eq!(decide_limit(129, &usual), LimitDecision::Raise(524_288));
        assert_eq!(decide_limit(129, &limits(1_024, None)), LimitDecision::Raise(MAX_SOFT_LIMIT));
        assert_eq!(
            decide_limit(100_000, &Rlimit { current: None, maximum: None }),
            LimitDecision::Fits
        );
    }

    #[test]
    fn the_hard_limit_bounds_the_sessions_and_a_part_is_reserved() {
        let small = limits(1_024, Some(20_000));
        assert_eq!(decide_limit(4_744, &small), LimitDecision::Raise(20_000));
        let full = OpenFileLimitError { limit: 20_000, most: 4_744 };
        assert_eq!(decide_limit(4_745, &small), LimitDecision::TooMuch(full));
        assert!(FILES_PER_SESSION * full.most + MAX_RESERVED_FILES <= full.limit);
        let message = full.to_string();
        assert!(
            message.contains("4744 workers") && message.contains("20000 open files"),
            "{message}"
        );
        assert_eq!(
            decide_limit(1, &limits(0, Some(0))),
            LimitDecision::TooMuch(OpenFileLimitError { limit: 0, most: 0 })
        );
    }

    #[test]
    fn dropped_slots_are_released() {
        // Other tests of this process hold some as well, but not so many.
        let many = max_sessions().map_or(1_000, |most| most / 2).min(1_000);
        for _ in 0..3 {
            let slots: Vec<SessionSlot> =
                (0..many).map(|_| SessionSlot::acquire().expect("room")).collect();
            assert!(many <= lock_slots().in_use);
            drop(slots);
            assert!(lock_slots().in_use < many, "{} are still held", lock_slots().in_use);
        }
    }
}
