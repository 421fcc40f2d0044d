//! A folder to attack in, and the program in it. A program that hangs or exceeds its memory limit
//! fails the test.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::Value;

use crate::patience;

/// Kilobytes of address space that a run of the program may take, with all that it maps: by
/// measurement, the largest run here takes a third of it.
pub(crate) const MEMORY: u64 = 3 << 20;

/// Longest time for one command. Each takes seconds; only a hang takes longer.
const HANGS: Duration = Duration::from_secs(120);

/// Two nodes, one of them slow, so that there are findings and proposals.
const MACHINES: &str = "title = \"t\"\nseed = 5\n[[domain]]\nnodes = \"box[1-2]\"\n\
    platform = \"hgx-h100\"\ngpus_per_node = 2\nper_node = true\n\
    [[fault]]\nkind = \"lost-links\"\ngpu = \"box2:1\"\ncount = 3\n";

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A folder with programs that precede the machine's own on PATH.
pub(crate) struct Place {
    folder: tempfile::TempDir,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) umask: Option<&'static str>,
    /// Kilobytes of address space that a run may take.
    pub(crate) memory: u64,
}

impl Place {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("bin")).expect("made");
        Self { folder, env: BTreeMap::new(), umask: None, memory: MEMORY }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn put(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("inside")).expect("made");
        fs::write(&path, bytes).expect("written");
        path
    }

    /// A program that is found before the machine's.
    pub(crate) fn program(&self, name: &str, script: &str) {
        let path = self.put(&format!("bin/{name}"), format!("#!/bin/sh\n{script}\n"));
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("executable");
    }

    #[expect(clippy::disallowed_methods, reason = "a test starts the program itself")]
    pub(crate) fn run(&self, args: &[&str]) -> Ended {
        let umask = self.umask.map(|mask| format!("umask {mask}; ")).unwrap_or_default();
        let script = format!("{umask}ulimit -v {}; exec \"$@\"", self.memory);
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("sh");
        command
            .args(["-c", &script, "sh", env!("CARGO_BIN_EXE_fabricgate")])
            .args(args)
            .current_dir(self.folder.path())
            .env_remove("FABRICGATE_CONFIG")
            .env("NO_COLOR", "1")
            .env("PATH", format!("{}:{path}", self.path("bin").display()))
            .envs(&self.env);
        let output = patience::output(&mut command, HANGS);
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let (stdout, stderr) = (text(output.stdout), text(output.stderr));
        let ended = Ended { code: output.status.code(), stdout, stderr };
        let internal = [None, Some(1), Some(101), Some(134)];
        assert!(!internal.contains(&ended.code), "{args:?} broke: {ended:?}");
        ended
    }

    /// A copy of the folder of a run that was really made.
    pub(crate) fn foreign_run(&self) -> PathBuf {
        let to = self.path("runs/r");
        copy(run(), &to);
        // As a run on machines: many answers omit simulated nodes.
        change(&to.join("run.json"), |run| {
            run["launcher"] = serde_json::json!({"kind": "command", "template": ["ssh", "{node}"]});
        });
        to
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("made");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let to = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).expect("copied");
        }
    }
}

/// The folder of a run that the program made once.
pub(crate) fn run() -> &'static Path {
    static RUN: OnceLock<(Place, PathBuf)> = OnceLock::new();
    let (_, run) = RUN.get_or_init(|| {
        let place = Place::new();
        place.put("machines.toml", MACHINES);
        let ended = place.run(&["audit", "--sim", "machines.toml"]);
        assert_eq!(ended.code, Some(3), "{}", ended.stderr);
        let run = fs::read_dir(place.path("runs")).expect("runs").next().expect("a run");
        let run = run.expect("an entry").path();
        (place, run)
    });
    run
}

pub(crate) fn change(path: &Path, change: impl FnOnce(&mut Value)) {
    let text = fs::read_to_string(path).expect("a document");
    let mut value: Value = serde_json::from_str(&text).expect("JSON");
    change(&mut value);
    fs::write(path, value.to_string()).expect("written");
}

/// Every file below a folder.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("an entry").path();
        if path.is_symlink() || !path.is_dir() {
            found.push(path);
        } else {
            found.extend(files(&path));
        }
    }
    found
}
