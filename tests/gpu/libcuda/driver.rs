//! The driver's state in this process, and the access of a call to it.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::time::Duration;

use crate::description::Description;
use crate::faults::{Fate, Faults};
use crate::memory::{Memory, Origin};
use crate::rates::{Gpu, Machine, Place};
use crate::streams::{Effect, Goal, Step, Streams, Work};
use crate::{codes, faults};

#[derive(Debug)]
pub struct Driver {
    pub machine: Machine,
    pub memory: Memory,
    pub streams: Streams,
    pub initialized: bool,
    /// Reference count of each primary context.
    pub contexts: BTreeMap<u32, u32>,
    /// Pairs of contexts: the first may use the second's memory.
    pub peers: BTreeSet<(u32, u32)>,
    /// Broken contexts, with the code that every later call returns.
    pub broken: BTreeMap<u32, i32>,
    faults: Faults,
}

pub type Guard = MutexGuard<'static, Driver>;

static DRIVER: LazyLock<Mutex<Driver>> = LazyLock::new(|| {
    Mutex::new(Driver {
        machine: Machine::of(Description::given()),
        memory: Memory::default(),
        streams: Streams::default(),
        initialized: false,
        contexts: BTreeMap::new(),
        peers: BTreeSet::new(),
        broken: BTreeMap::new(),
        faults: Faults::default(),
    })
});

thread_local! {
    static CURRENT: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Poll interval while a call waits for a word.
const LOOK: Duration = Duration::from_micros(200);

/// First handle of contexts.
const FIRST_CONTEXT: u64 = 0xC000_0000;

pub fn context_of(gpu: u32) -> u64 {
    FIRST_CONTEXT + (u64::from(gpu) << 8)
}

pub fn gpu_of(context: u64) -> Option<u32> {
    u32::try_from(context.checked_sub(FIRST_CONTEXT)? >> 8).ok()
}

/// Makes a GPU's context this thread's current one.
pub fn enter(gpu: Option<u32>) {
    CURRENT.set(gpu);
}

/// Answers a call: faults first, then its effect.
pub fn answer(name: &'static str, call: impl FnOnce(Guard) -> Result<(), i32>) -> c_int {
    let gpu = CURRENT.get();
    let fate = {
        let mut driver = lock();
        let Driver { machine, faults, .. } = &mut *driver;
        faults.of_call(&machine.description, name, gpu)
    };
    match fate {
        Fate::Answer => {}
        Fate::Fail(code) => return code,
        Fate::Hang => faults::hang(),
        Fate::Die => std::process::abort(),
    }
    let driver = lock();
    let needs_nothing = ["cuInit", "cuDriverGetVersion", "cuGetErrorName"].contains(&name);
    if !driver.initialized && !needs_nothing {
        return codes::NOT_INITIALIZED;
    }
    call(driver).err().unwrap_or(0)
}

fn lock() -> Guard {
    DRIVER.lock().expect("no call panics")
}

impl Driver {
    /// The GPU of this thread's context, unless that is broken.
    pub fn current(&self) -> Result<u32, i32> {
        let gpu = CURRENT.get().ok_or(codes::INVALID_CONTEXT)?;
        self.broken.get(&gpu).map_or(Ok(gpu), |code| Err(*code))
    }

    /// A GPU that is visible to this process, with its number.
    pub fn gpu(&self, device: c_int) -> Result<(u32, &Gpu), i32> {
        let ordinal = usize::try_from(device).map_err(|_| codes::INVALID_DEVICE)?;
        let number = *self.machine.visible.get(ordinal).ok_or(codes::INVALID_DEVICE)?;
        Ok((number, &self.machine.gpus[number as usize]))
    }

    /// The stream of a handle; 0 is the current context's default stream.
    pub fn stream(&mut self, handle: u64) -> Result<(u64, u32), i32> {
        let current = self.current()?;
        let handle = if handle == 0 {
            let own = context_of(current) + 1;
            self.streams.open(own, current);
            own
        } else {
            handle
        };
        let gpu = self.streams.gpu(handle).ok_or(codes::INVALID_HANDLE)?;
        self.broken.get(&gpu).map_or(Ok((handle, gpu)), |code| Err(*code))
    }

    /// True if a stream has room for more. A held stream fills up, and a call that queues more
    /// blocks until it moves, as with a real driver.
    pub fn has_room(&mut self, stream: u64) -> bool {
        self.streams.settle();
        while self.streams.is_full(stream) {
            if self.step() == Step::Held {
                return false;
            }
        }
        true
    }

    /// Moves the data of finished transfers. Access to forbidden memory breaks the context.
    fn carry_out(&mut self, gpu: u32, effect: &Effect) {
        let code = match *effect {
            Effect::Copy { to, from, bytes, is_wrong } => self.move_data(to, from, bytes, is_wrong),
            Effect::Fill { at, word, words } => self.fill(at, word, words),
            Effect::Call { function, data } => {
                function(data as *mut std::ffi::c_void);
                Ok(())
            }
        };
        let own = self.faults.is_lost(&self.machine.description, gpu);
        if let Some(code) = code.err().or(own) {
            self.broken.insert(gpu, code);
        }
    }

    fn move_data(&mut self, to: u64, from: u64, bytes: u64, is_wrong: bool) -> Result<(), i32> {
        for address in [to, from] {
            self.region(address, bytes).ok_or(codes::ILLEGAL_ADDRESS)?;
        }
        // Both ranges hold this many bytes, which was checked just before (or are the caller's);
        // they may be the same.
        unsafe {
            std::ptr::copy(from as *const u8, to as *mut u8, bytes as usize);
            if is_wrong && 4 <= bytes {
                // One word in the middle, one bit.
                let word = (to + (bytes / 8) * 4).min(to + bytes - 4) as *mut u32;
                word.write_unaligned(word.read_unaligned() ^ 0x0010_0000);
            }
        }
        for address in [to, from] {
            if let Some(Place::Gpu { node, gpu }) = self.region(address, bytes)
                && node == self.machine.node
                && let Some(code) = self.faults.is_lost(&self.machine.description, gpu)
            {
                return Err(code);
            }
        }
        Ok(())
    }

    fn fill(&mut self, at: u64, word: u32, words: u64) -> Result<(), i32> {
        self.region(at, words * 4).ok_or(codes::ILLEGAL_ADDRESS)?;
        let words = usize::try_from(words).map_err(|_| codes::INVALID_VALUE)?;
        // As above.
        unsafe { std::slice::from_raw_parts_mut(at as *mut u32, words) }.fill(word);
        Ok(())
    }

    /// The place of memory; host memory need not be the driver's.
    pub fn region(&self, address: u64, bytes: u64) -> Option<Place> {
        self.memory.region(address, bytes).map(|region| region.place.clone())
    }

    /// One step of simulated time.
    fn step(&mut self) -> Step {
        self.streams.settle();
        let (step, effects) = self.streams.step();
        for (gpu, effect) in &effects {
            self.carry_out(*gpu, effect);
        }
        self.streams.settle();
        step
    }

    /// Checks if a goal is reached; if not, time passes until a transfer ends.
    pub fn look(&mut self, goal: Goal) -> bool {
        self.streams.settle();
        self.streams.is_reached(goal) || {
            self.step();
            self.streams.is_reached(goal)
        }
    }
}

/// Queues work in a stream, as soon as it has room.
pub fn queue(mut driver: Guard, stream: u64, work: Work) {
    while !driver.has_room(stream) {
        drop(driver);
        std::thread::sleep(LOOK);
        driver = lock();
    }
    driver.streams.push(stream, work);
}

/// Waits until a goal is reached. For work that the host holds, it waits for the host.
pub fn wait(mut driver: Guard, goal: Goal) -> Guard {
    loop {
        driver.streams.settle();
        if driver.streams.is_reached(goal) {
            return driver;
        }
        if driver.step() == Step::Held {
            drop(driver);
            std::thread::sleep(LOOK);
            driver = lock();
        }
    }
}

impl Driver {
    /// Releases a GPU's primary context. The last release destroys all its resources.
    pub fn release(&mut self, gpu: u32) -> Result<(), i32> {
        let count = self.contexts.get_mut(&gpu).ok_or(codes::INVALID_CONTEXT)?;
        *count -= 1;
        if *count == 0 {
            self.contexts.remove(&gpu);
            self.peers.retain(|(from, to)| *from != gpu && *to != gpu);
            self.streams.forget(gpu);
            self.memory.forget(gpu);
        }
        Ok(())
    }

    /// Retains a GPU's primary context.
    pub fn retain(&mut self, gpu: u32) -> Result<(), i32> {
        if let Some(code) = self.faults.is_lost(&self.machine.description, gpu) {
            return Err(code);
        }
        *self.contexts.entry(gpu).or_default() += 1;
        Ok(())
    }

    /// A GPU's memory in use by this process.
    pub fn used(&self, place: &Place) -> u64 {
        self.memory.used(place)
    }

    /// Reserves a place on a GPU, if there is room for this much.
    pub fn room(&self, gpu: u32, bytes: u64) -> Result<Place, i32> {
        let place = self.machine.place(gpu);
        let all = self.machine.gpus[gpu as usize].memory;
        let fits = self.used(&place).checked_add(bytes).is_some_and(|sum| sum <= all);
        if fits { Ok(place) } else { Err(codes::OUT_OF_MEMORY) }
    }

    /// The place of these bytes, if a GPU may use them. Host memory need not be the driver's.
    pub fn place(&self, address: u64, bytes: u64, gpu: u32) -> Result<Place, i32> {
        let region = self.memory.region(address, bytes).ok_or(codes::INVALID_VALUE)?;
        if region.origin == Origin::Mapped && !region.allowed.contains(&gpu) {
            return Err(codes::INVALID_VALUE);
        }
        Ok(region.place.clone())
    }

    /// True if a copy goes over the fabric: either GPU's context may use the other's memory.
    /// Opened and mapped memory comes with that right.
    pub fn is_direct(&self, source: &Place, target: &Place, from: u64, to: u64) -> bool {
        let shared = |address: u64| {
            let region = self.memory.region(address, 1);
            region.is_some_and(|it| matches!(it.origin, Origin::Opened | Origin::Mapped))
        };
        let (Place::Gpu { gpu: a, .. }, Place::Gpu { gpu: b, .. }) = (source, target) else {
            return false;
        };
        let has = |from: u32, to: u32| self.peers.contains(&(from, to));
        shared(from) || shared(to) || has(*a, *b) || has(*b, *a)
    }
}
