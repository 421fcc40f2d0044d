//! The attendant of our own GPU probes: starts the processes that make the GPU
//! calls, bounds them, carries their exchanges, and keeps what they said until
//! whatever happened to them.
//!
//! It makes no GPU call itself, so that nothing a driver does can stop it from
//! answering in time. What numbers should be it does not know.

pub mod collectives;
pub mod copies;
pub mod fabrics;
pub mod heard;
mod noise;
mod sampler;
mod seat;
pub mod together;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio::time::MissedTickBehavior;
use tokio::time::interval;
use tokio::time::sleep_until;

use crate::probes::board::Board;
use heard::Fate;
use heard::Heard;
use heard::Word;
use model::exchange::Answer;
use model::exchange::Ask;
use model::exchange::PREFIX;
use sampler::Sampler;
pub use sampler::Watched;
pub use sampler::Watching;
use seat::Event;
use seat::Seat;
use together::Lists;

/// How often children are looked at.
const GLANCE: Duration = Duration::from_millis(100);

/// How much longer than whoever waits longest the others may take to answer:
/// their own bound ends the waiting, and the answer travels.
const TRAVEL: Duration = Duration::from_secs(15);

/// Why there is no answer where nobody is left to give one.
const GONE: &str = "whoever started the probe is gone";

/// A process to start.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// What people call it; empty where it is the only one.
    pub name: String,
    /// The GPU that it is about, where it is about one.
    pub gpu: Option<u32>,
    /// What this program is told.
    pub words: Vec<String>,
    /// Variables besides those that are inherited.
    pub env: BTreeMap<String, String>,
}

/// What is attended.
#[derive(Clone, Debug)]
pub struct Work {
    /// This program's own executable.
    pub executable: PathBuf,
    /// What the node is called.
    pub node: String,
    /// The processes.
    pub parts: Vec<Part>,
    /// How GPUs are watched meanwhile.
    pub watching: Option<Watching>,
    /// How long all of it may take.
    pub limit: Duration,
    /// How long a process may say nothing while it waits for nobody.
    pub silence: Duration,
    /// Whether nodes exchange lists, one value per process (else one value: there
    /// is one process).
    pub lists: bool,
}

/// With whom processes exchange.
pub enum Others<'o> {
    /// With each other.
    Nobody,
    /// With those of other nodes, through whoever started us.
    Above {
        /// Its lines.
        lines: mpsc::Receiver<Vec<u8>>,
        /// Says it a line.
        say: &'o mut dyn FnMut(&str) -> io::Result<()>,
    },
}

impl std::fmt::Debug for Others<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Nobody => "Nobody",
            Self::Above { .. } => "Above",
        })
    }
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Attended {
    /// The processes, in the order they were given.
    pub parts: Vec<Heard>,
    /// Their numbers.
    pub numbers: Vec<u32>,
    /// What was watched meanwhile.
    pub watched: Option<Watched>,
    /// How it was ended from outside.
    pub interrupted: Option<&'static str>,
    /// Why the others could not be heard.
    pub deaf: Option<String>,
}

/// Runs the processes to their end. `stop` ends them early and says how. Must be
/// called inside a runtime, on a thread that lives as long as we do: what is
/// started dies with it. `told` hears what a process is about to do.
pub async fn attend<'a>(
    work: &'a Work,
    others: Others<'a>,
    mut stop: watch::Receiver<Option<&'static str>>,
    told: &mut dyn FnMut(usize, &str),
) -> Attended {
    let begun = Instant::now();
    let sampler = match &work.watching {
        None => None,
        Some(watching) => Some(tokio::select! {
            sampler = Sampler::start(&work.executable, watching) => sampler,
            _ = stopped(&mut stop) => Err("it was ended before".to_owned()),
        }),
    };
    let (say, events) = mpsc::channel(64);
    let seats: Vec<Seat> =
        work.parts.iter().enumerate().map(|(at, part)| Seat::take(work, part, at, &say)).collect();
    drop(say);
    let numbers = seats.iter().filter_map(Seat::number).collect();
    let mut table = Table {
        board: Board::new(vec![work.node.clone(); seats.len()]),
        seats,
        others,
        lists: Lists::default(),
        asked: None,
        within_s: 0.0,
        begun,
        work,
        interrupted: None,
        is_alone: false,
        deaf: None,
    };
    table.dismiss_the_dead().await;
    table.run(events, &mut stop, told).await;
    let hurry = table.interrupted.is_some();
    let watched = match sampler {
        None => None,
        Some(Ok(sampler)) => Some(sampler.conclude(hurry).await),
        Some(Err(why)) => Some(Watched { trouble: Some(why), ..Watched::default() }),
    };
    let Table { seats, interrupted, deaf, .. } = table;
    let parts = seats.into_iter().map(Seat::leave).collect();
    Attended { parts, numbers, watched, interrupted, deaf }
}

/// What our node asked the others.
struct Asked {
    /// Who waits for it here, with the shares of our children.
    waiting: Vec<usize>,
    number: u64,
    until: Instant,
}

/// Everybody who takes part.
struct Table<'t> {
    board: Board,
    seats: Vec<Seat>,
    others: Others<'t>,
    lists: Lists,
    asked: Option<Asked>,
    /// The longest that anybody waits in the exchange that is going on.
    within_s: f64,
    begun: Instant,
    work: &'t Work,
    interrupted: Option<&'static str>,
    /// Nobody is there who would answer.
    is_alone: bool,
    /// Why exchanges came to nothing.
    deaf: Option<String>,
}

impl Table<'_> {
    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Goes on until nobody is left.
    async fn run(
        &mut self,
        mut events: mpsc::Receiver<Event>,
        stop: &mut watch::Receiver<Option<&'static str>>,
        told: &mut dyn FnMut(usize, &str),
    ) {
        let deadline = self.begun + self.work.limit;
        let mut glance = interval(GLANCE);
        glance.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_over = false;
        while self.seats.iter().any(Seat::is_open) {
            tokio::select! {
                event = events.recv() => match event {
                    Some(Event::Line(at, line)) => {
                        self.hear(at, &line).await;
                        continue;
                    }
                    Some(Event::Closed(at, why)) => self.seats[at].closed(why),
                    None => { glance.tick().await; }
                },
                how = stopped(stop), if self.interrupted.is_none() => {
                    self.interrupted = Some(how);
                    self.end_all(&Fate::Interrupted(how));
                }
                line = from_above(&mut self.others), if !self.is_alone => {
                    self.hear_others(line).await;
                }
                () = sleep_until(deadline), if !is_over => {
                    is_over = true;
                    self.end_all(&Fate::OutOfTime(self.work.limit.as_secs_f64()));
                }
                _ = glance.tick() => {}
            }
            self.glance(told).await;
        }
    }

    fn end_all(&mut self, fate: &Fate) {
        for seat in &mut self.seats {
            seat.end(fate.clone());
        }
    }

    /// Takes a line of a child.
    async fn hear(&mut self, at: usize, line: &[u8]) {
        let seat = &mut self.seats[at];
        match seat.hear(line) {
            Word::Said => {}
            Word::TooMuch => seat.end(Fate::Babbled("there is no end to what it says".to_owned())),
            Word::Asks(ask) => match serde_json::from_slice::<Ask>(ask) {
                Err(error) => {
                    seat.end(Fate::Babbled(format!("its exchange cannot be understood: {error}")));
                }
                Ok(ask) => {
                    seat.is_waiting = true;
                    self.within_s = self.within_s.max(ask.within_s);
                    let answers = self.board.ask(at, ask, self.now());
                    if let Some(why) = self.board.gone(at) {
                        let why = why.to_owned();
                        self.seats[at].end(Fate::Babbled(why));
                    }
                    self.answered(answers).await;
                }
            },
        }
    }

    /// All of our children have given: ask the others, or answer.
    async fn answered(&mut self, answers: Vec<(usize, Answer)>) {
        let Some((_, first)) = answers.first() else { return };
        let within_s = std::mem::take(&mut self.within_s);
        let number = first.number;
        if let Others::Nobody = self.others {
            for (at, answer) in answers {
                self.pass(at, &answer).await;
            }
            return;
        }
        if self.is_alone {
            return self.deafen(GONE);
        }
        let value = match self.work.lists {
            true => together::merged(&first.shares),
            false => first.shares.first().and_then(|it| it.value.clone()).unwrap_or_default(),
        };
        let ask = Ask { number, value, within_s };
        let line = serde_json::to_string(&ask).expect("values are plain data");
        let waiting = answers.into_iter().map(|(at, _)| at).collect();
        let patience = Duration::try_from_secs_f64(within_s).unwrap_or(self.work.limit);
        let until = Instant::now() + patience.min(self.work.limit) + TRAVEL;
        self.asked = Some(Asked { waiting, number, until });
        if let Others::Above { say, .. } = &mut self.others
            && say(&format!("{PREFIX}{line}")).is_err()
        {
            self.deafen("whoever started the probe does not listen any more");
        }
    }

    /// Takes a line of whoever started us.
    async fn hear_others(&mut self, line: Option<Vec<u8>>) {
        let Some(line) = line else {
            self.is_alone = true;
            // Nobody may have anything left to ask.
            if self.asked.is_some() {
                self.deafen(GONE);
            }
            return;
        };
        if line.trim_ascii().is_empty() {
            return;
        }
        let answer: Answer = match serde_json::from_slice(&line) {
            Ok(answer) => answer,
            Err(error) => {
                return self.deafen(&format!("an answer cannot be understood: {error}"));
            }
        };
        let Some(asked) = self.asked.take_if(|asked| asked.number == answer.number) else {
            return self.deafen(&format!("an answer to exchange {} came unasked", answer.number));
        };
        for at in asked.waiting {
            let own = match self.work.lists {
                true => self.lists.flatten(&answer, at),
                false => answer.clone(),
            };
            self.pass(at, &own).await;
        }
    }

    /// Nobody will answer any more: whoever waits is told so by the end of its
    /// input.
    fn deafen(&mut self, why: &str) {
        self.deaf.get_or_insert_with(|| why.to_owned());
        self.is_alone = true;
        self.asked = None;
        for seat in &mut self.seats {
            seat.hang_up();
        }
    }

    async fn pass(&mut self, at: usize, answer: &Answer) {
        let line = serde_json::to_vec(answer).expect("values are plain data");
        self.seats[at].tell(&line).await;
    }

    /// Looks after everybody: who hangs, who is late, who has ended.
    async fn glance(&mut self, told: &mut dyn FnMut(usize, &str)) {
        for (at, seat) in self.seats.iter_mut().enumerate() {
            if let Some(doing) = seat.listen() {
                told(at, doing);
            }
            seat.look_for_silence(self.work.silence);
            seat.look_for_end().await;
        }
        self.dismiss_the_dead().await;
        let late = self.board.late(self.now());
        for at in late.gone {
            let why = self.board.gone(at).unwrap_or("it was late").to_owned();
            self.seats[at].end(Fate::Left(why));
        }
        self.answered(late.answers).await;
        if self.asked.as_ref().is_some_and(|asked| asked.until <= Instant::now()) {
            self.deafen("the other nodes gave no answer");
        }
    }

    /// Tells the others of those whose fate is known.
    async fn dismiss_the_dead(&mut self) {
        for at in 0..self.seats.len() {
            // Looked at ten times a second, long after somebody has left.
            if self.board.gone(at).is_some() {
                continue;
            }
            let Some(why) = self.seats[at].reason() else { continue };
            let answers = self.board.leave(at, &why);
            self.answered(answers).await;
        }
    }
}

/// How it is ended from outside; for ever nothing where nobody can.
async fn stopped(stop: &mut watch::Receiver<Option<&'static str>>) -> &'static str {
    match stop.wait_for(Option::is_some).await {
        Ok(how) => how.unwrap_or("ended"),
        Err(_) => std::future::pending().await,
    }
}

/// The next line of whoever started us; for ever none where nobody did.
async fn from_above(others: &mut Others<'_>) -> Option<Vec<u8>> {
    match others {
        Others::Nobody => std::future::pending().await,
        Others::Above { lines, .. } => lines.recv().await,
    }
}

#[cfg(test)]
mod tests;
