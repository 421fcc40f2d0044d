//! Files that this process may have open: how many conversations that leaves room for.
//!
//! Each holds four, for as long as its node is held. Where the soft limit ends before the
//! hard one it is raised when that is needed, and what we start is given the one that we
//! were given: `srun` carries limits to its nodes, and old programs close as many files as
//! they might have. A part is kept for what is measured, which must be written all the same.

use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use rustix::process::Resource;
use rustix::process::Rlimit;
use rustix::process::getrlimit;
use rustix::process::setrlimit;
use tokio::process::Command;

use crate::ffi::limits;

/// Files of one conversation: three pipes and the handle of the process.
const EACH: u64 = 4;

/// What is kept for everything else at most, and half where there is little: whoever is
/// talked with may have two files of its own being written.
const REST: u64 = 1_024;

/// No more than this is asked for, whatever the hard limit: the kernel's `fs.nr_open`,
/// where nobody has changed it.
const MOST: u64 = 1 << 20;

/// What is held, and the limit that was ours when we had to raise it.
static HELD: Mutex<Held> = Mutex::new(Held { rooms: 0, given: None });

#[derive(Debug)]
struct Held {
    rooms: u64,
    given: Option<Rlimit>,
}

/// Room for one conversation, until it is dropped.
#[derive(Debug)]
pub(super) struct Room(());

/// There is no room for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{most} workers are all that a limit of {limit} open files has room for: raise the hard limit \
     (`ulimit -Hn`, LimitNOFILE= in units), or measure fewer nodes at once"
)]
pub(super) struct Full {
    /// The hard limit.
    limit: u64,
    /// So many have room.
    most: u64,
}

impl Room {
    pub(super) fn take() -> Result<Self, Full> {
        let mut held = held();
        let now = getrlimit(Resource::Nofile);
        match asked(held.rooms + 1, &now) {
            Asked::Fits => {}
            Asked::Raise(soft) => {
                let raised = Rlimit { current: Some(soft), maximum: now.maximum };
                // Where that is refused the system itself says what does not fit.
                if setrlimit(Resource::Nofile, raised).is_ok() {
                    held.given.get_or_insert(now);
                }
            }
            Asked::TooMuch(full) => return Err(full),
        }
        held.rooms += 1;
        Ok(Self(()))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut held = held();
        held.rooms = held.rooms.saturating_sub(1);
    }
}

/// Gives what is started the limit that we were given.
pub(super) fn as_given(command: &mut Command) {
    if let Some(given) = held().given {
        limits::give(command, Resource::Nofile, given);
    }
}

/// How many conversations there is room for at once; `None` where nothing limits them.
pub fn most() -> Option<u64> {
    getrlimit(Resource::Nofile).maximum.map(rooms)
}

fn held() -> MutexGuard<'static, Held> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn rooms(limit: u64) -> u64 {
    (limit - rest(limit)) / EACH
}

fn rest(limit: u64) -> u64 {
    REST.min(limit / 2)
}

/// What another conversation asks of the limits.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Fits,
    Raise(u64),
    TooMuch(Full),
}

fn asked(wanted: u64, now: &Rlimit) -> Asked {
    let fits = |limit: Option<u64>| limit.is_none_or(|limit| wanted <= rooms(limit));
    if fits(now.current) {
        return Asked::Fits;
    }
    match now.maximum {
        Some(limit) if !fits(now.maximum) => Asked::TooMuch(Full { limit, most: rooms(limit) }),
        hard => Asked::Raise(hard.map_or(MOST, |hard| hard.min(MOST))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(soft: u64, hard: Option<u64>) -> Rlimit {
        Rlimit { current: Some(soft), maximum: hard }
    }

    #[test]
    fn a_limit_is_raised_where_that_is_needed_and_may_be() {
        // systemd's own limits: 1,024, and 524,288 for whoever asks.
        let usual = limits(1_024, Some(524_288));
        assert_eq!(asked(128, &usual), Asked::Fits);
        assert_eq!(asked(129, &usual), Asked::Raise(524_288));
        assert_eq!(asked(129, &limits(1_024, None)), Asked::Raise(MOST));
        assert_eq!(asked(100_000, &Rlimit { current: None, maximum: None }), Asked::Fits);
    }

    #[test]
    fn beyond_the_hard_limit_there_is_no_room_and_a_part_is_kept() {
        let small = limits(1_024, Some(20_000));
        assert_eq!(asked(4_744, &small), Asked::Raise(20_000));
        let full = Full { limit: 20_000, most: 4_744 };
        assert_eq!(asked(4_745, &small), Asked::TooMuch(full));
        assert!(EACH * full.most + REST <= full.limit);
        let words = full.to_string();
        assert!(words.contains("4744 workers") && words.contains("20000 open files"), "{words}");
        assert_eq!(asked(1, &limits(0, Some(0))), Asked::TooMuch(Full { limit: 0, most: 0 }));
    }

    #[test]
    fn room_is_given_back() {
        // Other tests of this process hold some as well, but not so many.
        let many = most().map_or(1_000, |most| most / 2).min(1_000);
        for _ in 0..3 {
            let rooms: Vec<Room> = (0..many).map(|_| Room::take().expect("room")).collect();
            assert!(many <= held().rooms);
            drop(rooms);
            assert!(held().rooms < many, "{} are still held", held().rooms);
        }
    }
}
