//! Streams, events and the simulated time they run in.
//!
//! Time stands still while the host works and passes while a call waits: then the heads of all
//! streams run concurrently, at the rates of `fluid`, until the awaited work is done. Data moves
//! when its transfer ends.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::fluid;
use crate::fluid::Way;
use crate::rates::Resource;

/// Data to be moved or written.
#[derive(Debug)]
pub enum Effect {
    Copy {
        to: u64,
        from: u64,
        bytes: u64,
        is_wrong: bool,
    },
    Fill {
        at: u64,
        word: u32,
        words: u64,
    },
    /// A call of another library's.
    Call {
        function: extern "C" fn(*mut c_void),
        data: usize,
    },
}

/// Operation of a stream.
#[derive(Debug)]
pub enum Work {
    /// Moves this much over a way, in no less than this time.
    Transfer { amount: f64, way: Way<Resource>, at_least_ns: f64, effect: Effect },
    /// Waits until a word is at least this.
    Hold { word: u64, value: u32 },
    /// Waits for an event's n-th record.
    Await { event: u64, record: u64 },
    /// Is an event's n-th record.
    Record { event: u64, record: u64 },
}

#[derive(Debug)]
struct Stream {
    gpu: u32,
    /// Bytes that the head of the queue still has to move, and its earliest end.
    running: Option<(f64, f64)>,
    queue: VecDeque<Work>,
    ended: bool,
}

#[derive(Debug)]
struct Event {
    gpu: u32,
    records: u64,
    reached: u64,
    at_ns: f64,
}

#[derive(Debug, Default)]
pub struct Streams {
    now_ns: f64,
    streams: BTreeMap<u64, Stream>,
    events: BTreeMap<u64, Event>,
    numbers: u64,
}

/// Goal of a waiting call.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    Stream(u64),
    Gpu(u32),
    Everything,
    Event { event: u64, record: u64 },
}

/// Result of a step of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Passed,
    /// All streams wait for a word that the host must set.
    Held,
}

/// Capacity of a held stream: about the number of operations that a channel of the driver takes
/// before a queueing call blocks.
const ROOM: usize = 1024;

/// Handles are large, so that a number is not mistaken for one.
const FIRST_HANDLE: u64 = 0x5700_0000;

impl Streams {
    fn handle(&mut self) -> u64 {
        self.numbers += 0x10;
        FIRST_HANDLE + self.numbers
    }

    pub fn create(&mut self, gpu: u32) -> u64 {
        let handle = self.handle();
        self.open(handle, gpu);
        handle
    }

    /// A stream with a given handle: the default stream of a context.
    pub fn open(&mut self, handle: u64, gpu: u32) {
        let fresh = || Stream { gpu, running: None, queue: VecDeque::new(), ended: false };
        self.streams.entry(handle).or_insert_with(fresh);
    }

    pub fn gpu(&self, stream: u64) -> Option<u32> {
        self.streams.get(&stream).filter(|it| !it.ended).map(|it| it.gpu)
    }

    /// Destroys a stream; its queued work still runs.
    pub fn destroy(&mut self, stream: u64) -> bool {
        let Some(found) = self.streams.get_mut(&stream).filter(|it| !it.ended) else {
            return false;
        };
        found.ended = true;
        if found.queue.is_empty() {
            self.streams.remove(&stream);
        }
        true
    }

    pub fn push(&mut self, stream: u64, work: Work) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.queue.push_back(work);
        }
    }

    pub fn is_full(&self, stream: u64) -> bool {
        self.streams.get(&stream).is_some_and(|it| ROOM <= it.queue.len())
    }

    /// Destroys all streams and events of a context.
    pub fn forget(&mut self, gpu: u32) {
        self.streams.retain(|_, stream| stream.gpu != gpu);
        self.events.retain(|_, event| event.gpu != gpu);
    }

    pub fn create_event(&mut self, gpu: u32) -> u64 {
        let handle = self.handle();
        let event = Event { gpu, records: 0, reached: 0, at_ns: 0.0 };
        self.events.insert(handle, event);
        handle
    }

    pub fn destroy_event(&mut self, event: u64) -> bool {
        self.events.remove(&event).is_some()
    }

    /// Records an event of the same context at a stream's current end.
    pub fn record(&mut self, event: u64, stream: u64) -> bool {
        let gpu = self.gpu(stream);
        let Some(found) = self.events.get_mut(&event).filter(|it| Some(it.gpu) == gpu) else {
            return false;
        };
        found.records += 1;
        let record = found.records;
        self.push(stream, Work::Record { event, record });
        true
    }

    /// The GPU of an event's context.
    pub fn event_gpu(&self, event: u64) -> Option<u32> {
        self.events.get(&event).map(|it| it.gpu)
    }

    /// The last record of an event; 0 before the first.
    pub fn records(&self, event: u64) -> Option<u64> {
        self.events.get(&event).map(|it| it.records)
    }

    /// Time of an event's last record.
    pub fn reached_ns(&self, event: u64) -> Option<f64> {
        let event = self.events.get(&event)?;
        (0 < event.records && event.reached == event.records).then_some(event.at_ns)
    }

    pub fn is_reached(&self, goal: Goal) -> bool {
        let idle = |stream: &Stream| stream.queue.is_empty();
        match goal {
            Goal::Stream(stream) => self.streams.get(&stream).is_none_or(idle),
            Goal::Gpu(gpu) => self.streams.values().filter(|it| it.gpu == gpu).all(idle),
            Goal::Everything => self.streams.values().all(idle),
            Goal::Event { event, record } => {
                self.events.get(&event).is_none_or(|it| record <= it.reached)
            }
        }
    }

    /// Runs all operations that take no time, and begins the others.
    pub fn settle(&mut self) {
        loop {
            let mut changed = false;
            for stream in self.streams.values_mut() {
                while let Some(work) = stream.queue.front() {
                    let done = match work {
                        Work::Transfer { amount, at_least_ns, .. } => {
                            stream.running.get_or_insert((*amount, self.now_ns + at_least_ns));
                            false
                        }
                        Work::Hold { word, value } => {
                            // The memory was checked to be the stub's when the operation was
                            // queued.
                            let word = unsafe { AtomicU32::from_ptr(*word as *mut u32) };
                            // As the API defines it: the difference, as a signed number.
                            let over = word.load(Ordering::Acquire).wrapping_sub(*value);
                            0 <= over.cast_signed()
                        }
                        Work::Await { event, record } => {
                            self.events.get(event).is_none_or(|it| *record <= it.reached)
                        }
                        Work::Record { event, record } => {
                            if let Some(event) = self.events.get_mut(event) {
                                event.reached = *record;
                                event.at_ns = self.now_ns;
                            }
                            true
                        }
                    };
                    if !done {
                        break;
                    }
                    stream.queue.pop_front();
                    changed = true;
                }
            }
            self.streams.retain(|_, stream| !(stream.ended && stream.queue.is_empty()));
            if !changed {
                return;
            }
        }
    }

    /// Lets time pass until the next transfers end, and returns their data, with the GPUs of
    /// their streams.
    pub fn step(&mut self) -> (Step, Vec<(u32, Effect)>) {
        let running = |stream: &&mut Stream| stream.running.is_some();
        let mut streams: Vec<&mut Stream> = self.streams.values_mut().filter(running).collect();
        let ways = streams.iter().map(|stream| match stream.queue.front() {
            Some(Work::Transfer { way, .. }) => way,
            _ => unreachable!("only transfers run"),
        });
        let rates = fluid::rates(&ways.collect::<Vec<_>>());
        let now = self.now_ns;
        // The end of each transfer at the current rates.
        let ends = streams.iter().zip(&rates).map(|(stream, rate)| {
            let (left, not_before) = stream.running.expect("it runs");
            (now + left / rate).max(not_before)
        });
        let ends: Vec<f64> = ends.collect();
        // A transfer without remaining bytes that has not reached its minimum time still shares
        // resources: short copies have their full cost.
        // A transfer with a rate of 0 never ends.
        let next = ends.iter().copied().filter(|end| end.is_finite()).min_by(f64::total_cmp);
        let Some(next) = next else {
            return (Step::Held, Vec::new());
        };
        let mut effects = Vec::new();
        for ((stream, rate), end) in streams.iter_mut().zip(&rates).zip(&ends) {
            // Done within rounding: sums of fractions differ in their last bits.
            if *end <= next * (1.0 + 1e-12) {
                stream.running = None;
                if let Some(Work::Transfer { effect, .. }) = stream.queue.pop_front() {
                    effects.push((stream.gpu, effect));
                }
            } else if let Some((left, _)) = &mut stream.running {
                *left = (*left - rate * (next - now)).max(0.0);
            }
        }
        self.now_ns = next;
        (Step::Passed, effects)
    }
}
