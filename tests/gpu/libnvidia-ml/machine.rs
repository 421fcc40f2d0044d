//! The machine, and the access of a call to it.
//!
//! A line about all GPUs (`nvml links = 18`) applies to a GPU without its own line (`nvml 3 links
//! = 12`).

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::str::FromStr;
use std::sync::{LazyLock, Mutex};

use crate::description::{Description, VARIABLE, wrong};
use crate::faults;
use crate::faults::{Fate, Faults};

// nvmlReturn_t
pub const INVALID_ARGUMENT: c_int = 2;
pub const NOT_SUPPORTED: c_int = 3;
pub const INSUFFICIENT_SIZE: c_int = 7;
pub const GPU_IS_LOST: c_int = 15;
pub const OTHER_VERSION: c_int = 25;

/// A GPU's handle: its number plus one, since no handle is zero.
pub type Handle = *mut c_void;

/// Second or third words of this library's keys.
const KNOWN: &[&str] = &[
    "gpus",
    "driver",
    "architecture",
    "links",
    "link",
    "errors",
    "fabric",
    "rest",
    "clock",
    "throttled",
    "pcie",
    "replays",
    "processes",
    "lost",
    "ecc",
    "serial",
];

pub struct Machine {
    pub description: Description,
    faults: Faults,
    /// Number of calls by name and by GPU, or by the object next to it.
    counts: BTreeMap<String, u64>,
}

static MACHINE: LazyLock<Mutex<Machine>> = LazyLock::new(|| {
    let description = Description::given();
    check();
    Mutex::new(Machine { description, faults: Faults::default(), counts: BTreeMap::new() })
});

/// Ends the process at an unknown key of this library.
fn check() {
    let path = std::env::var_os(VARIABLE).unwrap_or_default();
    let text = std::fs::read_to_string(path).unwrap_or_default();
    for line in text.lines() {
        let words = line.split(['#', '=']).next().unwrap_or_default();
        let mut words = words.split_whitespace();
        if words.next() != Some("nvml") {
            continue;
        }
        let word = words.find(|word| word.parse::<u32>().is_err()).unwrap_or_default();
        if !KNOWN.contains(&word) {
            wrong(&format!("unknown key: {line:?}"));
        }
    }
}

/// Answers a call about the machine: faults first, then its effect.
pub fn answer(name: &'static str, call: impl FnOnce(&mut Machine) -> Result<(), c_int>) -> c_int {
    let fate = {
        let Machine { description, faults, .. } = &mut *lock();
        faults.of_call(description, name, None)
    };
    match fate {
        Fate::Answer => call(&mut lock()).err().unwrap_or(0),
        Fate::Fail(code) => code,
        Fate::Hang => faults::hang(),
        Fate::Die => std::process::abort(),
    }
}

pub fn answer_of(
    name: &'static str,
    handle: Handle,
    call: impl FnOnce(&mut Machine, u32) -> Result<(), c_int>,
) -> c_int {
    answer(name, |machine| {
        let gpu = machine.gpu(handle)?;
        let calls = machine.count(&format!("{gpu}"));
        match machine.of::<u64>(gpu, "lost") {
            Some(after) if after < calls => Err(GPU_IS_LOST),
            _ => call(machine, gpu),
        }
    })
}

fn lock() -> std::sync::MutexGuard<'static, Machine> {
    MACHINE.lock().expect("no call panics")
}

impl Machine {
    /// Number of GPUs of the driver; `nvml gpus` where it differs from CUDA's.
    pub fn gpus(&self) -> u32 {
        let shared = || self.description.get(&["gpus"]).unwrap_or(1);
        self.description.get(&["nvml", "gpus"]).unwrap_or_else(shared)
    }

    fn gpu(&self, handle: Handle) -> Result<u32, c_int> {
        let number = (handle as usize).checked_sub(1).and_then(|it| u32::try_from(it).ok());
        number.filter(|number| *number < self.gpus()).ok_or(INVALID_ARGUMENT)
    }

    /// Counts an event, from 1.
    pub fn count(&mut self, what: &str) -> u64 {
        let count = self.counts.entry(what.to_owned()).or_default();
        *count += 1;
        *count
    }

    /// This library's value of a key for a GPU, or for all of them.
    pub fn of<T: FromStr>(&self, gpu: u32, what: &str) -> Option<T> {
        let number = gpu.to_string();
        let own = self.description.get(&["nvml", &number, what]);
        own.or_else(|| self.description.get(&["nvml", what]))
    }

    /// All libraries' value of a key for a GPU, or for all of them.
    pub fn shared(&self, gpu: u32, what: &str) -> Option<String> {
        let number = gpu.to_string();
        let own = self.description.get(&["gpu", &number, what]);
        own.or_else(|| self.description.get(&["gpu", what]))
    }

    /// True if this call finds the GPU busy: the first `nvml rest` calls of each kind find it
    /// idle, by default one.
    pub fn is_at_work(&mut self, gpu: u32, call: &str) -> bool {
        let calls = self.count(&format!("{gpu} {call}"));
        self.of::<u64>(gpu, "rest").unwrap_or(1) < calls
    }

    /// The next value of a counter with the description `FROM BY`: the first value, and its
    /// growth per query.
    pub fn counter(&mut self, words: &[&str]) -> u64 {
        let Some(text) = self.description.get::<String>(words) else { return 0 };
        let asked = self.count(&words.join(" "));
        let numbers: Vec<i64> =
            text.split_whitespace().map(|it| it.parse().unwrap_or_else(|_| wrong(&text))).collect();
        let [from, by] = numbers[..] else { wrong(&text) };
        let grown = from + by * (i64::try_from(asked).unwrap_or(i64::MAX) - 1);
        u64::try_from(grown).unwrap_or(0)
    }

    /// `NVML_DEVICE_ARCH_*`, Hopper by default.
    pub fn architecture(&self, gpu: u32) -> u32 {
        self.of(gpu, "architecture").unwrap_or(9)
    }

    pub fn links(&self, gpu: u32) -> u32 {
        self.of(gpu, "links").unwrap_or(18)
    }
}

/// Writes a value to the caller's pointer.
pub fn put<T>(place: *mut T, value: T) -> Result<(), c_int> {
    if place.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // The caller passes a pointer that nvml.h allows.
    unsafe { place.write(value) };
    Ok(())
}

/// Writes a text there with its zero byte, where there is room for all of it.
pub fn put_text(place: *mut c_char, room: c_uint, text: &str) -> Result<(), c_int> {
    if place.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    if room as usize <= text.len() {
        return Err(INSUFFICIENT_SIZE);
    }
    // As above, of `room` bytes.
    unsafe {
        place.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
        place.add(text.len()).write(0);
    }
    Ok(())
}

/// Exports calls: of the machine (`|machine|`) or of a GPU (`|machine, gpu|`).
macro_rules! calls {
    () => {};
    ($name:ident($device:ident: Handle $(, $arg:ident: $type:ty)*)
        |$machine:ident, $gpu:ident| $body:block $($rest:tt)*) => {
        #[allow(non_snake_case, reason = "the name is the driver's")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($device: Handle $(, $arg: $type)*) -> std::ffi::c_int {
            #[allow(unused_variables, reason = "not every call asks for more")]
            crate::machine::answer_of(stringify!($name), $device, |$machine, $gpu| $body)
        }
        crate::machine::calls! { $($rest)* }
    };
    ($name:ident($($arg:ident: $type:ty),*) |$machine:ident| $body:block $($rest:tt)*) => {
        #[allow(non_snake_case, reason = "the name is the driver's")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: $type),*) -> std::ffi::c_int {
            crate::machine::answer(stringify!($name), |$machine| $body)
        }
        crate::machine::calls! { $($rest)* }
    };
}

pub(crate) use calls;
