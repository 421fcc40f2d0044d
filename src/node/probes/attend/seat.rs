//! One child process and its place at the table.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio::time::timeout;

use super::Part;
use super::Work;
use super::heard::Fate;
use super::heard::Heard;
use super::heard::Word;
use super::heard::clean;
use super::noise::Noise;
use crate::exec::guard;
use crate::exec::session::Input;
use crate::exec::session::Output;
use crate::exec::session::Process;
use crate::exec::session::Session;
use model::raw::Ending;

/// How long a child may take to read an answer.
const READING: Duration = Duration::from_secs(5);

/// How long its output may stay open after it has ended, and how long it may
/// live on after it was killed: one that hangs inside the kernel cannot be
/// ended by anybody.
const LINGER: Duration = Duration::from_secs(2);

/// What a child's listener tells.
#[derive(Debug)]
pub(super) enum Event {
    /// A line of the child at this place.
    Line(usize, Vec<u8>),
    /// There will be no more, and why that is not the end of the child.
    Closed(usize, Option<String>),
}

/// A child.
#[derive(Debug)]
pub(super) struct Seat {
    heard: Heard,
    input: Option<Input>,
    process: Option<Process>,
    noise: Arc<Mutex<Noise>>,
    /// Pieces of noise that were heard of.
    pieces: u64,
    /// It waits for the answer to an exchange.
    pub(super) is_waiting: bool,
    /// When it last gave a sign of life.
    spoke: Instant,
    /// Nothing more will come out of it.
    is_closed: bool,
    /// Why it is ended, and since when.
    killed: Option<(Fate, Instant)>,
    /// How it ended, and when that was seen.
    ended: Option<(Ending, Instant)>,
}

impl Seat {
    /// Starts the child at this place.
    pub(super) fn take(work: &Work, part: &Part, at: usize, say: &mpsc::Sender<Event>) -> Self {
        let mut seat = Self {
            heard: Heard::of(&part.name, part.gpu),
            input: None,
            process: None,
            noise: Arc::default(),
            pieces: 0,
            is_waiting: false,
            spoke: Instant::now(),
            is_closed: false,
            killed: None,
            ended: None,
        };
        let mut argv = vec![work.executable.display().to_string()];
        argv.extend_from_slice(&part.words);
        let (ear, noises) = mpsc::channel(16);
        let argv = guard::guarded(&work.executable, &argv);
        match Session::overheard(&argv, &part.env, Some(ear)) {
            Err(error) => seat.heard.fate = Some(Fate::NotStarted(error.to_string())),
            Ok(Session { input, output, process }) => {
                tokio::spawn(listen(output, at, say.clone()));
                tokio::spawn(overhear(noises, Arc::clone(&seat.noise)));
                seat.input = Some(input);
                seat.process = Some(process);
            }
        }
        seat
    }

    /// The number of its process.
    pub(super) fn number(&self) -> Option<u32> {
        self.process.as_ref().and_then(Process::number)
    }

    /// Whether it has not left yet.
    pub(super) fn is_open(&self) -> bool {
        self.heard.fate.is_none()
    }

    /// Why it takes part no longer, for the others.
    pub(super) fn reason(&self) -> Option<String> {
        let fate = self.heard.fate.as_ref().or(self.killed.as_ref().map(|(fate, _)| fate))?;
        // What a child says of itself is the better reason.
        let own = self.heard.told().last().map(|problem| problem.detail.clone());
        let reason = match fate {
            Fate::Ended => own,
            _ => self.heard.problem_of(fate).map(|problem| problem.detail),
        };
        Some(clean(&reason.unwrap_or_else(|| "its process has ended".to_owned())))
    }

    /// Takes a line.
    pub(super) fn hear<'l>(&mut self, line: &'l [u8]) -> Word<'l> {
        self.spoke = Instant::now();
        self.heard.take(line)
    }

    /// Nothing more will come.
    pub(super) fn closed(&mut self, why: Option<String>) {
        self.is_closed = true;
        if let Some(why) = why {
            self.end(Fate::Babbled(why));
        }
    }

    /// Hears what it says it is about to do, where that is new.
    pub(super) fn listen(&mut self) -> Option<&str> {
        let noise = self.noise.lock().unwrap_or_else(PoisonError::into_inner);
        if noise.pieces == self.pieces {
            return None;
        }
        self.pieces = noise.pieces;
        self.spoke = Instant::now();
        if noise.doing == self.heard.doing {
            return None;
        }
        self.heard.doing.clone_from(&noise.doing);
        self.heard.doing.as_deref()
    }

    /// Ends it if it hangs.
    pub(super) fn look_for_silence(&mut self, most: Duration) {
        let silent = self.spoke.elapsed();
        if !self.is_waiting && most < silent {
            self.end(Fate::Hung(silent.as_secs_f64()));
        }
    }

    /// Ends it, for this reason.
    pub(super) fn end(&mut self, fate: Fate) {
        if self.heard.fate.is_some() || self.killed.is_some() || self.ended.is_some() {
            return;
        }
        if let Some(process) = &self.process {
            process.kill();
        }
        self.killed = Some((fate, Instant::now()));
    }

    /// Closes its input.
    pub(super) fn hang_up(&mut self) {
        self.input = None;
        self.is_waiting = false;
        self.spoke = Instant::now();
    }

    /// Answers it.
    pub(super) async fn tell(&mut self, line: &[u8]) {
        self.is_waiting = false;
        self.spoke = Instant::now();
        let Some(input) = &mut self.input else { return };
        match timeout(READING, input.send(line)).await {
            // One that has ended is found out when its output closes.
            Ok(_) => {}
            Err(_) => self.end(Fate::Babbled("it does not read what it asked for".to_owned())),
        }
    }

    /// Sees whether it has ended, and what that means.
    pub(super) async fn look_for_end(&mut self) {
        if self.heard.fate.is_some() {
            return;
        }
        let Some(process) = &mut self.process else { return };
        if self.ended.is_none()
            && let Ok(ending) = timeout(Duration::ZERO, process.wait()).await
        {
            self.ended = Some((ending, Instant::now()));
        }
        let is_over = match (&self.ended, &self.killed) {
            (Some((_, since)), _) => self.is_closed || LINGER < since.elapsed(),
            (None, Some((_, since))) => LINGER < since.elapsed(),
            (None, None) => false,
        };
        if !is_over {
            return;
        }
        if self.ended.is_some() {
            // Also takes its last words.
            process.end(Duration::ZERO).await;
        }
        let _ = self.listen();
        {
            let mut noise = self.noise.lock().unwrap_or_else(PoisonError::into_inner);
            noise.close();
            self.heard.chatter = std::mem::take(&mut noise.chatter);
            self.heard.words = std::mem::take(&mut noise.words).into();
        }
        let killed = self.killed.take().map(|(fate, _)| fate);
        let ending = self.ended.as_ref().map(|(ending, _)| ending);
        self.heard.fate = Some(match (killed, ending) {
            (Some(fate), _) => fate,
            (None, Some(Ending::Exited { code: 0 })) => Fate::Ended,
            (None, Some(Ending::Exited { code })) => Fate::Failed(*code),
            (None, Some(Ending::Signalled { signal })) => Fate::Died(*signal),
            (None, other) => Fate::NotStarted(format!("it ended strangely: {other:?}")),
        });
        self.process = None;
    }

    /// What was heard of it.
    pub(super) fn leave(self) -> Heard {
        self.heard
    }
}

/// Keeps what a child says on its standard error.
async fn overhear(mut noises: mpsc::Receiver<Vec<u8>>, noise: Arc<Mutex<Noise>>) {
    while let Some(piece) = noises.recv().await {
        noise.lock().unwrap_or_else(PoisonError::into_inner).take(&piece);
    }
}

/// Passes on what a child says.
async fn listen(mut output: Output, at: usize, say: mpsc::Sender<Event>) {
    loop {
        let event = match output.next_line().await {
            Ok(Some(line)) => Event::Line(at, line),
            Ok(None) => Event::Closed(at, None),
            Err(error) => Event::Closed(at, Some(format!("what it says cannot be read: {error}"))),
        };
        let last = matches!(event, Event::Closed(..));
        if say.send(event).await.is_err() || last {
            return;
        }
    }
}
