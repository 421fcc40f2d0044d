//! The stub driver libraries, built when a test needs them, and the machines they simulate.
//!
//! A library is Rust source in `tests/gpu/lib*/lib.rs`, which `rustc` alone builds. It is built
//! once for all tests, into cargo's target folder, and again when its source changes. An older
//! driver is the same library with symbols renamed.

use std::collections::BTreeMap;
use std::fs;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The variable by which a library finds its machine's description.
pub(crate) const MACHINE: &str = "FABRICGATE_STUB";

/// A library of the driver's family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    Cuda,
    Nccl,
    Nvml,
}

impl Library {
    /// Libraries with a stub source.
    pub(crate) fn all() -> Vec<Self> {
        let all = [Self::Cuda, Self::Nccl, Self::Nvml];
        all.into_iter().filter(|it| it.folder().join("lib.rs").exists()).collect()
    }

    fn folder(self) -> PathBuf {
        let name = match self {
            Self::Cuda => "libcuda",
            Self::Nccl => "libnccl",
            Self::Nvml => "libnvidia-ml",
        };
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gpu").join(name)
    }

    /// File name of the driver's library.
    fn file(self) -> &'static str {
        match self {
            Self::Cuda => "libcuda.so.1",
            Self::Nccl => "libnccl.so.2",
            Self::Nvml => "libnvidia-ml.so.1",
        }
    }

    /// The variable that makes fabricgate load it.
    pub(crate) fn variable(self) -> &'static str {
        match self {
            Self::Cuda => "FABRICGATE_CUDA",
            Self::Nccl => "FABRICGATE_NCCL",
            Self::Nvml => "FABRICGATE_NVML",
        }
    }
}

/// Path of a library that lacks these symbols. Builds it if necessary.
pub(crate) fn build(library: Library, missing: &[&str]) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    for source in sources(&library.folder().join("..")) {
        // All sources: a library may share a module with another.
        source.hash(&mut hasher);
        fs::read(&source).expect("a readable source").hash(&mut hasher);
    }
    let built = format!("{:016x}", hasher.finish());
    missing.hash(&mut hasher);
    let variant = format!("{:016x}", hasher.finish());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stubs");
    let whole = folder.join(built).join(library.file());
    let wanted =
        if missing.is_empty() { whole.clone() } else { folder.join(variant).join(library.file()) };
    for place in [&whole, &wanted] {
        fs::create_dir_all(place.parent().expect("a folder")).expect("made");
    }
    // Tests run concurrently, in one process or in several. The lock holds until the file is
    // closed.
    let lock = File::create(folder.join("lock")).expect("a lock");
    lock.lock().expect("locked");
    if !whole.exists() {
        compile(library, &whole);
    }
    if !wanted.exists() {
        let bytes = fs::read(&whole).expect("a library");
        let bytes = missing.iter().fold(bytes, |bytes, symbol| without(bytes, symbol));
        place(&wanted, &bytes);
    }
    wanted
}

/// Writes a file atomically.
fn place(at: &Path, bytes: &[u8]) {
    let part = at.with_extension("part");
    fs::write(&part, bytes).expect("written");
    fs::rename(part, at).expect("renamed");
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("a readable folder").path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.parent().is_some_and(|it| it.file_name().is_some_and(is_library)) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn is_library(folder: &std::ffi::OsStr) -> bool {
    folder.to_string_lossy().starts_with("lib")
}

fn compile(library: Library, to: &Path) {
    let part = to.with_extension("part");
    let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
    #[expect(clippy::disallowed_methods, reason = "a test builds what it loads")]
    let output = Command::new(rustc)
        .args(["--edition", "2024", "--crate-type", "cdylib", "--crate-name", "stub"])
        .args(["-C", "opt-level=1", "-C", "panic=abort", "-C", "strip=symbols"])
        .args(["-A", "dead_code", "-D", "warnings", "-o"])
        .args([&part, &library.folder().join("lib.rs")])
        .output()
        .expect("rustc, which cargo runs as well");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::rename(part, to).expect("renamed");
}

/// The same library without this symbol, as in an older driver: a lookup of its name fails.
fn without(mut library: Vec<u8>, symbol: &str) -> Vec<u8> {
    let name = format!("\0{symbol}\0").into_bytes();
    let at = library.windows(name.len()).position(|part| part == name);
    // The first letter follows the zero byte that ends the previous name.
    library[at.unwrap_or_else(|| panic!("no {symbol} there")) + 1] = b'_';
    library
}

/// A machine, as the stubs read it. `libcuda/lib.rs` documents the lines, and each library's own
/// `lib.rs` those for that library alone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Machine {
    lines: Vec<String>,
    missing: BTreeMap<&'static str, Vec<String>>,
}

impl Machine {
    pub(crate) fn of(gpus: u32) -> Self {
        Self::default().with(&format!("gpus = {gpus}"))
    }

    /// The same with this line, in which `{folder}` is the description's folder.
    pub(crate) fn with(mut self, line: &str) -> Self {
        self.lines.push(line.to_owned());
        self
    }

    pub(crate) fn without(mut self, library: Library, symbols: &[&str]) -> Self {
        let symbols = symbols.iter().map(|symbol| (*symbol).to_owned());
        self.missing.entry(library.file()).or_default().extend(symbols);
        self
    }

    /// Writes its description into a folder, builds its libraries, and returns the variables with
    /// which fabricgate finds all of them.
    pub(crate) fn write(&self, folder: &Path) -> Vec<(&'static str, PathBuf)> {
        let file = folder.join("machine.txt");
        let here = folder.display().to_string();
        let text = self.lines.join("\n").replace("{folder}", &here) + "\n";
        fs::write(&file, text).expect("written");
        let libraries = Library::all().into_iter().map(|library| {
            let missing = self.missing.get(library.file()).map_or(&[][..], Vec::as_slice);
            let missing: Vec<&str> = missing.iter().map(String::as_str).collect();
            (library.variable(), build(library, &missing))
        });
        libraries.chain([(MACHINE, file)]).collect()
    }
    /// Writes its description and a copy of a library into a folder, for a test that loads it
    /// into its own process: every such library is another driver.
    pub(crate) fn driver(&self, folder: &Path, library: Library) -> PathBuf {
        let built = self.write(folder).into_iter().find(|(name, _)| *name == library.variable());
        let (_, built) = built.expect("there is a source");
        let own = folder.join(library.file());
        fs::copy(built, &own).expect("copied");
        own
    }
}
