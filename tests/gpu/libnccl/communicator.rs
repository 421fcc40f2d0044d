//! A communicator: its state, its asynchronous operations, and its faults.

use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, mpsc};
use std::time::Duration;

use crate::description::Description;
use crate::meeting::{Meeting, Vain};
use crate::operation::{Kind, Operation};
use crate::{driver, words};

// nccl.h: results.
pub const SUCCESS: c_int = 0;
pub const CUDA_ERROR: c_int = 1;
pub const SYSTEM_ERROR: c_int = 2;
pub const INVALID_ARGUMENT: c_int = 4;
pub const INVALID_USAGE: c_int = 5;
pub const REMOTE_ERROR: c_int = 6;
pub const IN_PROGRESS: c_int = 7;

pub static DESCRIPTION: LazyLock<Description> = LazyLock::new(Description::given);

/// One rank's end of a communicator. It is never freed, so that no handle becomes stale.
#[derive(Debug)]
pub struct Communicator {
    pub meeting: Meeting,
    pub is_blocking: bool,
    /// Its asynchronous state: a result.
    state: AtomicI32,
    /// Before the first query of its state, the last operation is not yet in progress.
    is_launching: AtomicBool,
    /// Operations so far.
    operations: AtomicU32,
    /// The first operation whose files may still be in the folder.
    forgotten: AtomicU32,
    /// The word for which streams wait: the number of completed operations.
    done: usize,
    queue: Mutex<Option<mpsc::Sender<usize>>>,
}

/// Work in a stream: an operation, and its communicator.
struct InStream {
    communicator: Arc<Communicator>,
    operation: Operation,
}

impl Communicator {
    pub fn new(
        folder: PathBuf,
        rank: u32,
        ranks: u32,
        is_blocking: bool,
    ) -> Result<Arc<Self>, c_int> {
        let deaf = DESCRIPTION.is_yes(&["nccl", "deaf"]).unwrap_or(false);
        let communicator = Arc::new(Self {
            meeting: Meeting::new(folder, rank, ranks, deaf),
            is_blocking,
            state: AtomicI32::new(IN_PROGRESS),
            is_launching: AtomicBool::new(false),
            operations: AtomicU32::new(0),
            forgotten: AtomicU32::new(1),
            done: driver::word().map_err(|_| CUDA_ERROR)?,
            queue: Mutex::new(None),
        });
        let (queue, queued) = mpsc::channel();
        *communicator.queue.lock().expect("no thread panics") = Some(queue);
        let worker = Arc::clone(&communicator);
        std::thread::spawn(move || {
            for at in queued {
                // It was leaked when it was put into the stream, which waits for this call.
                let in_stream = unsafe { &mut *(at as *mut InStream) };
                worker.work(&mut in_stream.operation);
            }
        });
        Ok(communicator)
    }

    /// Waits for the other ranks.
    pub fn connect(&self) -> c_int {
        let rank = self.meeting.rank;
        let result = match self.fate("init").as_deref() {
            Some("hang") => loop {
                std::thread::sleep(Duration::from_secs(3_600));
            },
            Some("die") => std::process::abort(),
            Some(code) => code.parse().unwrap_or(SYSTEM_ERROR),
            None => match self.meeting.come() {
                Ok(()) => SUCCESS,
                Err(vain) => result_of(vain),
            },
        };
        if result == SUCCESS {
            words::connected(&DESCRIPTION, rank, self.meeting.ranks);
        }
        self.state.store(result, Ordering::Release);
        result
    }

    /// The description's value of a key for this rank.
    fn fate(&self, word: &str) -> Option<String> {
        let rank = self.meeting.rank.to_string();
        let of = |rank: &str| DESCRIPTION.get::<String>(&["nccl", word, rank]);
        of(&rank).or_else(|| of("all"))
    }

    /// Its state. The first query right after the start of an operation returns "in progress".
    pub fn state(&self) -> c_int {
        let state = self.state.load(Ordering::Acquire);
        let is_launching = self.is_launching.swap(false, Ordering::AcqRel);
        if state == SUCCESS && is_launching { IN_PROGRESS } else { state }
    }

    /// Starts an operation in a stream. With a non-blocking communicator the previous one must be
    /// in progress.
    pub fn start(
        self: &Arc<Self>,
        kind: Kind,
        (send, receive): (usize, usize),
        count: usize,
        stream: usize,
    ) -> c_int {
        let state = self.state.load(Ordering::Acquire);
        if state != SUCCESS {
            return if state == IN_PROGRESS { INVALID_ARGUMENT } else { state };
        }
        if self.is_launching.load(Ordering::Acquire) {
            return INVALID_ARGUMENT;
        }
        let function = match kind {
            Kind::AllReduce => Some("AllReduce"),
            Kind::AllGather => Some("AllGather"),
            Kind::ReduceScatter => Some("ReduceScatter"),
            Kind::Broadcast { .. } => Some("Broadcast"),
            Kind::Messages { .. } => None,
        };
        if let Some(function) = function {
            words::chosen(&DESCRIPTION, self.meeting.rank, function, count * 4);
        }
        let number = self.operations.fetch_add(1, Ordering::AcqRel) + 1;
        let (sent, came) = (Vec::new(), Vec::new());
        let operation = Operation { number, kind, send, receive, count, sent, came };
        let communicator = Arc::clone(self);
        let data = Box::into_raw(Box::new(InStream { communicator, operation })) as usize;
        // A million bytes in 10 us, and 5 us for none.
        let nanoseconds = 5_000.0 + count as f64 * 0.04;
        match driver::push(stream, (begin, finish), data, (self.done, number), nanoseconds) {
            Err(_) => CUDA_ERROR,
            Ok(()) if self.is_blocking => SUCCESS,
            Ok(()) => {
                self.is_launching.store(true, Ordering::Release);
                IN_PROGRESS
            }
        }
    }

    /// Runs an operation, faults first.
    fn work(&self, operation: &mut Operation) {
        let nth = |word: &str| self.fate(word).and_then(|text| text.parse::<u32>().ok());
        let number = operation.number;
        if nth("die") == Some(number) {
            std::process::abort();
        }
        if nth("stall") == Some(number) {
            return;
        }
        if let Some(text) = self.fate("async") {
            let (code, at) = text.split_once(" at ").unwrap_or((&text, "1"));
            if at.parse() == Ok(number) {
                self.state.store(code.parse().unwrap_or(SYSTEM_ERROR), Ordering::Release);
                return;
            }
        }
        if let Err(vain) = operation.run(&self.meeting) {
            self.state.store(result_of(vain), Ordering::Release);
            if vain == Vain::Aborted {
                self.is_done(number);
            }
            return;
        }
        if nth("wrong").is_some_and(|from| from <= number)
            && let Some(came) = operation.came.iter_mut().find(|it| 4 <= it.len())
        {
            // One bit of a word in the middle.
            let middle = came.len() / 8 * 4;
            came[middle + 2] ^= 0x10;
        }
        // After a barrier no rank needs the earlier files.
        if !matches!(operation.kind, Kind::Messages { .. }) {
            for before in self.forgotten.swap(number, Ordering::AcqRel)..number {
                self.meeting.forget(&format!("{before}-{}", self.meeting.rank));
            }
        }
        self.is_done(number);
    }

    fn is_done(&self, number: u32) {
        // A page of the driver stub's memory, never freed.
        let word = unsafe { AtomicU32::from_ptr(self.done as *mut u32) };
        word.store(number, Ordering::Release);
    }

    /// Aborts the operation in progress.
    pub fn abort(&self) {
        if DESCRIPTION.get::<String>(&["nccl", "abort"]).as_deref() == Some("hang") {
            loop {
                std::thread::sleep(Duration::from_secs(3_600));
            }
        }
        self.meeting.aborted.store(true, Ordering::Release);
        self.is_done(self.operations.load(Ordering::Acquire));
    }
}

fn result_of(vain: Vain) -> c_int {
    match vain {
        Vain::Aborted => INVALID_USAGE,
        Vain::Dead(_) => REMOTE_ERROR,
    }
}

/// The stream has reached an operation.
extern "C" fn begin(data: *mut c_void) {
    // The box that `start` leaked.
    let in_stream = unsafe { &mut *data.cast::<InStream>() };
    let communicator = Arc::clone(&in_stream.communicator);
    in_stream.operation.snapshot(communicator.meeting.ranks);
    let queue = communicator.queue.lock().expect("no thread panics");
    if let Some(queue) = queue.as_ref() {
        let _ = queue.send(data as usize);
    }
}

/// An operation is done, or was aborted.
extern "C" fn finish(data: *mut c_void) {
    // As above; the worker may still hold it after an abort, so it is not freed.
    let in_stream = unsafe { &*data.cast::<InStream>() };
    in_stream.operation.deliver(in_stream.communicator.meeting.ranks);
}
