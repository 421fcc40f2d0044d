//! A scheduler with injected faults, as episodes see it: a stand-in, or a real one with a
//! recorder in front.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::dice::Dice;
use super::fates::Victim;
use super::hand::Edit;
use super::model::{Entry, Fields};
use super::site;

/// The fate of one request of the gate.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum InjectedFault {
    /// The client is killed, and the request is not processed.
    KillBefore,
    /// The client is killed, and the request is processed this much later: a link stalls, a
    /// controller hangs.
    Late(Duration),
    /// It is processed, and this much later a person changes the first node that it changed.
    HandAfter(Duration, Edit),
    /// It is processed, and the client is killed before the answer.
    KillAfter,
    /// The client is killed, and it is processed a moment later.
    Orphan,
    /// The connection breaks, and it is not processed.
    Lost,
    /// It is processed, and the connection breaks.
    LostAnswer,
    /// An error, and it is not processed.
    Refused,
    /// It is processed, and the answer is an error.
    RefusedAfter,
    /// It is processed, and half of the answer arrives.
    Torn,
    /// Every request takes this long.
    Slow(Duration),
    /// A person changes a node first.
    Hand(String, Edit),
    /// The scheduler is killed after processing it, and restarts after this long. It may have
    /// forgotten changes younger than the other time.
    Crash(Duration, Duration),
    /// The scheduler hangs for this long, and then processes the received requests.
    Hang(Duration),
}

impl InjectedFault {
    /// Any fault that every scheduler has.
    pub(crate) fn any(domains: &Domains, dice: &mut Dice) -> Self {
        let time = |dice: &mut Dice, most: usize| Duration::from_millis(dice.below(most) as u64);
        match dice.below(16) {
            0 | 1 => Self::KillBefore,
            2 | 3 => Self::KillAfter,
            4 | 5 => Self::Orphan,
            6 => Self::Lost,
            7 => Self::LostAnswer,
            8 => Self::Refused,
            9 => Self::RefusedAfter,
            10 => Self::Torn,
            11 => Self::Slow(time(dice, 1_500)),
            12 => Self::Crash(time(dice, 2_000), time(dice, 400)),
            13 => Self::Hang(time(dice, 4_000)),
            _ => Self::Hand(site::node(domains, dice), Edit::any(dice)),
        }
    }
}

/// The planned faults of the current commands, and those that occurred.
#[derive(Debug, Default)]
pub(crate) struct FaultPlan {
    ahead: BTreeMap<usize, InjectedFault>,
    asked: usize,
    /// By name, in order of occurrence.
    pub(crate) met: Vec<String>,
}

impl FaultPlan {
    /// For commands that have sent no request yet.
    pub(crate) fn of(ahead: BTreeMap<usize, InjectedFault>) -> Self {
        Self { ahead, ..Self::default() }
    }

    /// The fault of the next request.
    pub(crate) fn next(&mut self) -> Option<InjectedFault> {
        self.asked += 1;
        let fault = self.ahead.remove(&self.asked);
        self.met.extend(fault.iter().map(|it| format!("{it:?}")));
        fault
    }

    /// Moves this fault to the next request: the one that met it changes nothing.
    pub(crate) fn postpone(&mut self, fault: InjectedFault) {
        let words = format!("{fault:?}");
        if let Some(at) = self.met.iter().rposition(|it| *it == words) {
            self.met.remove(at);
        }
        let free = (self.asked + 1..).find(|at| !self.ahead.contains_key(at));
        self.ahead.insert(free.expect("numbers do not end"), fault);
    }
}

/// A scheduler.
pub(crate) trait World {
    /// The nodes at the beginning.
    fn begin(&self) -> BTreeMap<String, Fields>;
    /// `[gate]` and the sources of a configuration, for the command of this number in this site.
    fn gate(&self, site: &Path, command: u32) -> String;
    /// The planned faults of the next commands, by the number of the request.
    fn expect(&self, fault: BTreeMap<usize, InjectedFault>);
    /// Names of the faults that requests met since then: a command may end before it sends as
    /// many requests.
    fn met(&self) -> Vec<String>;
    /// Approximate number of requests of a command: later faults never occur.
    fn questions(&self) -> usize;
    /// This process is that command.
    fn begins(&self, command: u32, victim: Victim);
    /// It has ended.
    fn over(&self, command: u32);
    /// A person changes a node.
    fn edit(&self, node: &str, edit: &Edit);
    /// Restarts or continues killed and hung processes.
    fn mend(&self);
    /// True if nodes that were measured without workers are left alone: where the scheduler
    /// reports a node's boot, the gate compares it with the measured one.
    fn needs_workers(&self) -> bool {
        false
    }
    /// The scheduler restarts without its state: marks on nodes are gone. False if this world
    /// does not support it.
    fn forgets(&self) -> bool {
        false
    }
    /// Waits until no sent update is in flight any more.
    fn quiet(&self) {}
    /// An older copy of the journal is restored now. False if this world does not support it.
    fn restored(&self) -> bool {
        false
    }
    /// True if changes arrive late, and people change nodes right after the gate.
    fn is_late(&self) -> bool {
        false
    }
    /// Maximum delay of a change. `FABRICGATE_CHAOS_LATE_S` increases it.
    fn latest(&self) -> Duration {
        Duration::from_secs(super::number("FABRICGATE_CHAOS_LATE_S", 6))
    }
    /// Time for which a change of a killed sender may still arrive, as the gate is configured.
    fn in_flight(&self) -> Duration {
        self.latest() + Duration::from_secs(4)
    }
    /// All requests, updates and changes.
    fn log(&self) -> Vec<Entry>;
}

/// Domains with their nodes.
pub(crate) type Domains = Vec<(String, Vec<String>)>;
