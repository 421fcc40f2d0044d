//! The file that describes a machine: lines `words = value`, the last of the same words wins, `#`
//! begins a comment. The stubs of all libraries read the same file.
//!
//! The code that reads a key documents it. An unknown key ends the process, so that a misspelt
//! fault cannot make a test pass.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::str::FromStr;

/// The variable that names the file.
pub const VARIABLE: &str = "FABRICGATE_STUB";

#[derive(Debug, Default)]
pub struct Description {
    lines: BTreeMap<Vec<String>, String>,
}

impl Description {
    /// Reads the file that the variable names, by default the one next to this library. Without a
    /// file the stub has no answers, so the process ends.
    pub fn given() -> Self {
        let named = std::env::var_os(VARIABLE).map(PathBuf::from);
        let path = named.unwrap_or_else(|| beside().join("machine.txt"));
        match std::fs::read_to_string(&path) {
            Ok(text) => Self::of(&text),
            Err(error) => wrong(&format!("{}: {error}", path.display())),
        }
    }

    pub fn of(text: &str) -> Self {
        let mut lines = BTreeMap::new();
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let (words, value) = line.split_once('=').unwrap_or((line, "yes"));
            let words = words.split_whitespace().map(str::to_owned).collect();
            lines.insert(words, value.trim().to_owned());
        }
        Self { lines }
    }

    /// Ends the process unless every line begins with one of these keys.
    pub fn must_begin_with(&self, known: &[&str]) {
        for words in self.lines.keys() {
            if !known.contains(&words[0].as_str()) {
                wrong(&format!("unknown key {words:?}"));
            }
        }
    }

    /// The value of this key.
    pub fn get<T: FromStr>(&self, words: &[&str]) -> Option<T> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let text = self.lines.get(&words)?;
        match text.parse() {
            Ok(value) => Some(value),
            Err(_) => wrong(&format!("{words:?}: {text} cannot be read")),
        }
    }

    /// True if the value of this key is yes.
    pub fn is_yes(&self, words: &[&str]) -> Option<bool> {
        self.get::<String>(words).map(|text| text == "yes")
    }
}

/// `Dl_info` of dlfcn.h.
#[repr(C)]
struct Loaded {
    file: *const c_char,
    base: *mut c_void,
    symbol: *const c_char,
    address: *mut c_void,
}

unsafe extern "C" {
    fn dladdr(address: *const c_void, loaded: *mut Loaded) -> c_int;
}

fn beside() -> PathBuf {
    let mut loaded = MaybeUninit::<Loaded>::zeroed();
    let here = (beside as fn() -> PathBuf) as *const c_void;
    // It fills in the file if it finds the address, which is that of this code.
    let found = unsafe { dladdr(here, loaded.as_mut_ptr()) };
    let file = unsafe { loaded.assume_init() }.file;
    if found == 0 || file.is_null() {
        wrong("it does not know where it is");
    }
    let file = unsafe { CStr::from_ptr(file) }.to_string_lossy().into_owned();
    PathBuf::from(file).parent().map(PathBuf::from).unwrap_or_default()
}

/// Reports that the description cannot be used, and ends the process.
pub fn wrong(what: &str) -> ! {
    eprintln!("stub library: {what}");
    std::process::abort();
}
