//! Calls into the driver's stub: simulated work in its streams, words for which streams wait, and
//! memory for those. The stub is found among the loaded libraries of this process.

use std::ffi::{CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::LazyLock;

use crate::description::wrong;

unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, symbol: *const c_char) -> *mut c_void;
}

// dlfcn.h of Linux: RTLD_NOW, RTLD_NOLOAD.
const ALREADY_LOADED: c_int = 2 | 4;

pub type Function = extern "C" fn(*mut c_void);
type Work = unsafe extern "C" fn(*mut c_void, f64, Function, *mut c_void) -> c_int;
type WaitValue = unsafe extern "C" fn(*mut c_void, c_ulonglong, c_uint, c_uint) -> c_int;
type HostAlloc = unsafe extern "C" fn(*mut *mut c_void, usize, c_uint) -> c_int;

struct Driver {
    work: Work,
    wait_value: WaitValue,
    host_alloc: HostAlloc,
}

static DRIVER: LazyLock<Driver> = LazyLock::new(|| {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let path = maps.lines().find_map(|line| {
        let path = &line[line.find('/')?..];
        path.contains("libcuda.so").then(|| path.to_owned())
    });
    let Some(path) = path else { wrong("NCCL: this process has loaded no stub of the driver") };
    let path = CString::new(path).expect("a path");
    let library = unsafe { dlopen(path.as_ptr(), ALREADY_LOADED) };
    let find = |name: &str| {
        let symbol = CString::new(name).expect("a name");
        let found = unsafe { dlsym(library, symbol.as_ptr()) };
        if library.is_null() || found.is_null() {
            wrong(&format!("NCCL: the driver has no {name}"));
        }
        found
    };
    // The types are those with which the driver's stub exports these names.
    unsafe {
        Driver {
            work: std::mem::transmute::<*mut c_void, Work>(find("fabricgate_stub_work")),
            wait_value: std::mem::transmute::<*mut c_void, WaitValue>(find(
                "cuStreamWaitValue32_v2",
            )),
            host_alloc: std::mem::transmute::<*mut c_void, HostAlloc>(find("cuMemHostAlloc")),
        }
    }
});

/// A word for which streams can wait; this process never frees it.
pub fn word() -> Result<usize, c_int> {
    let mut place = std::ptr::null_mut();
    match unsafe { (DRIVER.host_alloc)(&raw mut place, 4096, 3) } {
        0 => Ok(place as usize),
        code => Err(code),
    }
}

/// Makes a stream call a function with this value, wait until a word is at least this, take some
/// time and call another function.
pub fn push(
    stream: usize,
    (begin, finish): (Function, Function),
    data: usize,
    (word, value): (usize, u32),
    nanoseconds: f64,
) -> Result<(), c_int> {
    let (stream, data) = (stream as *mut c_void, data as *mut c_void);
    let called = |code: c_int| if code == 0 { Ok(()) } else { Err(code) };
    unsafe {
        called((DRIVER.work)(stream, 1.0, begin, data))?;
        called((DRIVER.wait_value)(stream, word as c_ulonglong, value, 0))?;
        called((DRIVER.work)(stream, nanoseconds, finish, data))
    }
}
