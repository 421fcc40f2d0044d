//! A folder with a simulated rack and a configuration, in which the program runs as a user runs
//! it.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// Nodes of a rack with little noise; a scenario adds its faults.
pub(crate) fn rack(nodes: &str, wrong: &str) -> String {
    format!(
        "title = \"a rack\"\nseed = 7\n[noise]\nsigma = 0.002\n\
         [[domain]]\nname = \"rack\"\nnodes = \"{nodes}\"\nplatform = \"gb200-nvl72\"\n{wrong}"
    )
}

#[derive(Debug)]
pub(crate) struct Place {
    dir: tempfile::TempDir,
}

/// Output and exit code of the program.
#[derive(Debug)]
pub(crate) struct ProgramOutput {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl ProgramOutput {
    pub(crate) fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code().unwrap_or(-1);
        Self { code, stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{}\n{}", self.stdout, self.stderr);
        self
    }

    pub(crate) fn document(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", self.stdout))
    }
}

impl Place {
    /// With this fabric in the simulator, and this configuration.
    pub(crate) fn with(rack: &str, config: &str) -> Self {
        let place = Self { dir: tempfile::tempdir().expect("a folder") };
        place.put("rack.toml", rack);
        place.put("fabricgate.toml", config);
        place
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn put(&self, name: &str, text: &str) {
        fs::write(self.dir.path().join(name), text).expect("written");
    }

    #[expect(clippy::disallowed_methods, reason = "a test starts the program itself")]
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fabricgate"));
        command.args(words).current_dir(self.dir.path());
        command.env("FABRICGATE_CONFIG", self.dir.path().join("fabricgate.toml"));
        command
    }

    pub(crate) fn run(&self, words: &[&str]) -> ProgramOutput {
        ProgramOutput::of(&self.command(words).output().expect("started"))
    }

    /// Starts it without waiting; unused by programs that only run to the end.
    #[allow(dead_code, reason = "not every program of tests interrupts")]
    pub(crate) fn start(&self, words: &[&str]) -> Child {
        let mut command = self.command(words);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started")
    }
}
