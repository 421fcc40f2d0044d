//! A scheduler under bad weather, as episodes see it: a stand-in, or a real one
//! with a recorder in front.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::dice::Dice;
use super::fates::Victim;
use super::hand::Edit;
use super::model::{Entry, Fields};
use super::site;

/// What becomes of one question of the gate.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Weather {
    /// Who asks is killed, and nothing is done.
    KillBefore,
    /// Who asks is killed, and it is done this much later: a link stalls, a controller hangs.
    Late(Duration),
    /// It is done, and this much later a person changes the first node that it changed.
    HandAfter(Duration, Edit),
    /// It is done, and who asked is killed before it hears so.
    KillAfter,
    /// Who asks is killed, and it is done a moment later.
    Orphan,
    /// The connection breaks, and nothing is done.
    Lost,
    /// It is done, and the connection breaks.
    LostAnswer,
    /// An error, and nothing is done.
    Refused,
    /// It is done, and an error is told.
    RefusedAfter,
    /// It is done, and half of the answer comes.
    Torn,
    /// Everything takes this long.
    Slow(Duration),
    /// A person changes a node first.
    Hand(String, Edit),
    /// The scheduler is killed after it was done, and comes back after this long.
    /// What is younger than the other time it may have forgotten.
    Crash(Duration, Duration),
    /// The scheduler hangs for so long, and then does what it heard.
    Hang(Duration),
}

impl Weather {
    /// Any of those that every scheduler has.
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

/// The weather of the commands at hand, and what of it was met.
#[derive(Debug, Default)]
pub(crate) struct Forecast {
    ahead: BTreeMap<usize, Weather>,
    asked: usize,
    /// In words, in the order in which it was met.
    pub(crate) met: Vec<String>,
}

impl Forecast {
    /// Of commands that asked nothing yet.
    pub(crate) fn of(ahead: BTreeMap<usize, Weather>) -> Self {
        Self { ahead, ..Self::default() }
    }

    /// What the next question meets.
    pub(crate) fn next(&mut self) -> Option<Weather> {
        self.asked += 1;
        let weather = self.ahead.remove(&self.asked);
        self.met.extend(weather.iter().map(|it| format!("{it:?}")));
        weather
    }

    /// Has this befall the next question instead: the one that met it changes nothing.
    pub(crate) fn postpone(&mut self, weather: Weather) {
        let words = format!("{weather:?}");
        if let Some(at) = self.met.iter().rposition(|it| *it == words) {
            self.met.remove(at);
        }
        let free = (self.asked + 1..).find(|at| !self.ahead.contains_key(at));
        self.ahead.insert(free.expect("numbers do not end"), weather);
    }
}

/// A scheduler.
pub(crate) trait World {
    /// The nodes as they were at first.
    fn begin(&self) -> BTreeMap<String, Fields>;
    /// `[gate]` and the sources of a configuration, for the command of this number
    /// in this site.
    fn gate(&self, site: &Path, command: u32) -> String;
    /// The weather of the next commands, by the number of the question.
    fn expect(&self, weather: BTreeMap<usize, Weather>);
    /// What of it questions met since then, in words: a command may end before it asks
    /// so many.
    fn met(&self) -> Vec<String>;
    /// How many questions a command asks, about: weather beyond them befalls nobody.
    fn questions(&self) -> usize;
    /// This process is that command.
    fn begins(&self, command: u32, victim: Victim);
    /// It has ended.
    fn over(&self, command: u32);
    /// A person changes a node.
    fn edit(&self, node: &str, edit: &Edit);
    /// Whatever was killed or hangs is back.
    fn mend(&self);
    /// Whether nothing is done to nodes that were measured without workers: where the
    /// scheduler says which boot a node is in, the gate asks which one was measured.
    fn needs_workers(&self) -> bool {
        false
    }
    /// The scheduler starts again without its state: what was said on nodes is gone.
    /// False where such a thing does not befall it.
    fn forgets(&self) -> bool {
        false
    }
    /// Waits until nothing that somebody sent is on its way any more.
    fn quiet(&self) {}
    /// An older copy of the journal is put back now. False where that is not played.
    fn restored(&self) -> bool {
        false
    }
    /// Whether changes arrive late, and people change nodes right after the gate.
    fn is_late(&self) -> bool {
        false
    }
    /// How late a change arrives at most. `FABRICGATE_CHAOS_LATE_S` asks for more.
    fn latest(&self) -> Duration {
        Duration::from_secs(super::number("FABRICGATE_CHAOS_LATE_S", 6))
    }
    /// For how long a change of a killed sender may yet land, as the gate is told.
    fn in_flight(&self) -> Duration {
        self.latest() + Duration::from_secs(4)
    }
    /// Everything that was asked, told and changed.
    fn log(&self) -> Vec<Entry>;
}

/// Domains with their nodes.
pub(crate) type Domains = Vec<(String, Vec<String>)>;
