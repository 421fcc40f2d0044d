//! The real program on a machine of stubs: started, bounded, and watched: after its end no
//! process that it started may be left.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::stub::{Library, MACHINE, Machine};

/// Time limit of a test for a process that must end; after it the test reports a hang.
const HANGS: Duration = Duration::from_secs(120);

/// Time within which killed processes must be gone.
const GOES: Duration = Duration::from_secs(20);

/// Result of the program.
#[derive(Debug)]
pub(crate) struct Ran {
    /// Its exit code; `None` where a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    /// The only document on its standard output.
    pub(crate) fn document<T: serde::de::DeserializeOwned>(&self) -> T {
        serde_json::from_str(&self.out)
            .unwrap_or_else(|error| panic!("{error}: {} {}", self.out, self.err))
    }
}

/// A folder with a machine, and the program on it.
#[derive(Debug)]
pub(crate) struct Place {
    folder: tempfile::TempDir,
    variables: Vec<(&'static str, std::path::PathBuf)>,
}

impl Place {
    pub(crate) fn of(machine: &Machine) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut variables = machine.write(folder.path());
        // A library without a stub must not be the machine's.
        for library in [Library::Cuda, Library::Nccl, Library::Nvml] {
            if !variables.iter().any(|(name, _)| *name == library.variable()) {
                variables.push((library.variable(), folder.path().join("no-such-library.so")));
            }
        }
        Self { folder, variables }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn with(mut self, variable: &'static str, value: &Path) -> Self {
        self.variables.retain(|(name, _)| *name != variable);
        self.variables.push((variable, value.to_owned()));
        self
    }

    pub(crate) fn run(&self, words: &[&str]) -> Ran {
        self.ended(self.start(words))
    }

    /// Starts the program there. Its output goes to files, so that no test must read it while it
    /// runs.
    pub(crate) fn start(&self, words: &[&str]) -> Child {
        let file = |name: &str| fs::File::create(self.folder().join(name)).expect("a file");
        #[expect(clippy::disallowed_methods, reason = "a test starts the program under test")]
        Command::new(assert_cmd::cargo::cargo_bin!("fabricgate"))
            .args(words)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(file("out"))
            .stderr(file("err"))
            .spawn()
            .expect("started")
    }

    /// Waits for its end, and for the end of all processes that it started.
    pub(crate) fn ended(&self, mut child: Child) -> Ran {
        let since = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().expect("a child") {
                break status;
            }
            if HANGS < since.elapsed() {
                let _ = child.kill();
                panic!("the program hangs: {}", self.text("err"));
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let since = Instant::now();
        while let Some(left) = self.left() {
            assert!(since.elapsed() < GOES, "left running: {left}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ran { code: status.code(), out: self.text("out"), err: self.text("err") }
    }

    fn text(&self, name: &str) -> String {
        let bytes = fs::read(self.folder().join(name)).expect("a file");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A process that was started on this machine and still exists, zombies included while their
    /// parent runs.
    fn left(&self) -> Option<String> {
        let mine = format!("{MACHINE}={}\0", self.folder().join("machine.txt").display());
        let processes = fs::read_dir("/proc").expect("proc").filter_map(Result::ok);
        processes.map(|entry| entry.path()).find_map(|path| {
            // Other users' entries are unreadable, and processes end during the scan.
            let environment = fs::read(path.join("environ")).ok()?;
            let name = std::ffi::OsStr::from_bytes(&environment).to_string_lossy().into_owned();
            let words = fs::read(path.join("cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&words).replace('\0', " ");
            name.contains(&mine).then(|| format!("{} {words}", path.display()))
        })
    }
}
