//! The process that watches the GPUs around a probe. It asks a driver that may
//! hang, so it is never waited for longer than a bound, and what it says is kept
//! as it is.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::exec::guard;
use crate::exec::session::{ProcessSession, SessionInput, SessionOutput, SessionProcess};

/// How long it may take until it has read everything once. Without persistence
/// mode the driver brings up every GPU first, which takes seconds.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// How long it may take to read everything once more.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);

/// How long its end may take, after it was killed.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes that are kept of what it says.
const MAX_OUTPUT_BYTES: usize = 4 * 1024 * 1024;

/// What the process that watched said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SamplerOutput {
    /// Its lines.
    pub text: String,
    /// Why it did not end by itself.
    pub failure: Option<String>,
}

/// How GPUs are watched.
#[derive(Clone, Debug)]
pub struct SamplerSpec {
    /// What this program is told.
    pub args: Vec<String>,
    /// Whether a line says that the probe may begin.
    pub has_begun: fn(&str) -> bool,
}

/// What is heard of it.
#[derive(Debug, Default)]
struct SamplerBuffer {
    text: Mutex<String>,
    begun: Notify,
}

/// The process, while it watches.
#[derive(Debug)]
pub(super) struct GpuSampler {
    input: SessionInput,
    process: SessionProcess,
    buffer: Arc<SamplerBuffer>,
    reader: JoinHandle<()>,
    failure: Option<String>,
}

impl GpuSampler {
    /// Starts it, and waits within a bound until the probe may begin.
    pub(super) async fn start(executable: &Path, watching: &SamplerSpec) -> Result<Self, String> {
        let mut argv = vec![executable.display().to_string()];
        argv.extend_from_slice(&watching.args);
        let argv = guard::guarded_command(executable, &argv);
        let session =
            ProcessSession::start(&argv, &BTreeMap::new()).map_err(|error| error.to_string())?;
        let ProcessSession { input, output, process } = session;
        let heard = Arc::new(SamplerBuffer::default());
        let listening = tokio::spawn(read_output(output, Arc::clone(&heard), watching.has_begun));
        let trouble = match timeout(START_TIMEOUT, heard.begun.notified()).await {
            Ok(()) => None,
            Err(_) => Some(describe_hang(&process, START_TIMEOUT)),
        };
        Ok(Self { input, process, buffer: heard, reader: listening, failure: trouble })
    }

    /// Lets it conclude within a bound, and ends it.
    pub(super) async fn finish(mut self, hurry: bool) -> SamplerOutput {
        self.input.close();
        let patience = if hurry || self.failure.is_some() { KILL_TIMEOUT } else { FINISH_TIMEOUT };
        if timeout(patience, &mut self.reader).await.is_err() {
            self.reader.abort();
            self.failure.get_or_insert_with(|| describe_hang(&self.process, patience));
        }
        self.process.kill();
        // One that hangs inside the kernel cannot be ended by anybody.
        let _ = timeout(KILL_TIMEOUT, self.process.wait()).await;
        let said = self.buffer.text.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        SamplerOutput { text: said.clone(), failure: self.failure }
    }
}

/// Where it hangs.
fn describe_hang(process: &SessionProcess, patience: Duration) -> String {
    let tail = process.stderr_tail();
    let doing = super::child_output::clean(tail.trim_end().lines().next_back().unwrap_or_default());
    let seconds = patience.as_secs();
    match doing.is_empty() {
        true => format!("the driver did not answer within {seconds} s"),
        false => format!("the driver did not answer within {seconds} s: {doing}"),
    }
}

async fn read_output(
    mut output: SessionOutput,
    heard: Arc<SamplerBuffer>,
    has_begun: fn(&str) -> bool,
) {
    while let Ok(Some(line)) = output.next_line().await {
        let line = String::from_utf8_lossy(&line);
        let begun = has_begun(&line);
        {
            let mut said = heard.text.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if said.len() + line.len() < MAX_OUTPUT_BYTES {
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
