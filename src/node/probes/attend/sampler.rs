//! The process that watches the GPUs around a probe. It asks a driver that may
//! hang, so it is never waited for longer than a bound, and what it says is kept
//! as it is.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::exec::guard;
use crate::exec::session::Input;
use crate::exec::session::Output;
use crate::exec::session::Process;
use crate::exec::session::Session;

/// How long it may take until it has read everything once. Without persistence
/// mode the driver brings up every GPU first, which takes seconds.
const BEGINNING: Duration = Duration::from_secs(20);

/// How long it may take to read everything once more.
const CONCLUDING: Duration = Duration::from_secs(10);

/// How long its end may take, after it was killed.
const ENDING: Duration = Duration::from_secs(2);

/// Bytes that are kept of what it says.
const CAPTURE: usize = 4 * 1024 * 1024;

/// What the process that watched said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// Its lines.
    pub said: String,
    /// Why it did not end by itself.
    pub trouble: Option<String>,
}

/// How GPUs are watched.
#[derive(Clone, Debug)]
pub struct Watching {
    /// What this program is told.
    pub words: Vec<String>,
    /// Whether a line says that the probe may begin.
    pub has_begun: fn(&str) -> bool,
}

/// What is heard of it.
#[derive(Debug, Default)]
struct Heard {
    said: Mutex<String>,
    begun: Notify,
}

/// The process, while it watches.
#[derive(Debug)]
pub(super) struct Sampler {
    input: Input,
    process: Process,
    heard: Arc<Heard>,
    listening: JoinHandle<()>,
    trouble: Option<String>,
}

impl Sampler {
    /// Starts it, and waits within a bound until the probe may begin.
    pub(super) async fn start(executable: &Path, watching: &Watching) -> Result<Self, String> {
        let mut argv = vec![executable.display().to_string()];
        argv.extend_from_slice(&watching.words);
        let argv = guard::guarded(executable, &argv);
        let session = Session::start(&argv, &BTreeMap::new()).map_err(|error| error.to_string())?;
        let Session { input, output, process } = session;
        let heard = Arc::new(Heard::default());
        let listening = tokio::spawn(listen(output, Arc::clone(&heard), watching.has_begun));
        let trouble = match timeout(BEGINNING, heard.begun.notified()).await {
            Ok(()) => None,
            Err(_) => Some(stuck(&process, BEGINNING)),
        };
        Ok(Self { input, process, heard, listening, trouble })
    }

    /// Lets it conclude within a bound, and ends it.
    pub(super) async fn conclude(mut self, hurry: bool) -> Watched {
        self.input.close();
        let patience = if hurry || self.trouble.is_some() { ENDING } else { CONCLUDING };
        if timeout(patience, &mut self.listening).await.is_err() {
            self.listening.abort();
            self.trouble.get_or_insert_with(|| stuck(&self.process, patience));
        }
        self.process.kill();
        // One that hangs inside the kernel cannot be ended by anybody.
        let _ = timeout(ENDING, self.process.wait()).await;
        let said = self.heard.said.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Watched { said: said.clone(), trouble: self.trouble }
    }
}

/// Where it hangs.
fn stuck(process: &Process, patience: Duration) -> String {
    let tail = process.stderr_tail();
    let doing = super::heard::clean(tail.trim_end().lines().next_back().unwrap_or_default());
    let seconds = patience.as_secs();
    match doing.is_empty() {
        true => format!("the driver did not answer within {seconds} s"),
        false => format!("the driver did not answer within {seconds} s: {doing}"),
    }
}

async fn listen(mut output: Output, heard: Arc<Heard>, has_begun: fn(&str) -> bool) {
    while let Ok(Some(line)) = output.next_line().await {
        let line = String::from_utf8_lossy(&line);
        let begun = has_begun(&line);
        {
            let mut said = heard.said.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if said.len() + line.len() < CAPTURE {
                said.push_str(&line);
                said.push('\n');
            }
        }
        if begun {
            heard.begun.notify_one();
        }
    }
    // Whoever waits for one that ended waits for nothing.
    heard.begun.notify_one();
}
