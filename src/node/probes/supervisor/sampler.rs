//! The process that samples the GPUs during a probe. It queries a driver that may hang, so every
//! wait for it has a time limit, and its output is kept verbatim.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::exec::guard;
use crate::exec::session::{ProcessSession, SessionInput, SessionOutput, SessionProcess};

/// Time limit of the first reading. Without persistence mode the driver initializes every GPU
/// first, which takes seconds.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Time limit of the last reading.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit of its end after it was killed.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes of its output to keep.
const MAX_OUTPUT_BYTES: usize = 4 * 1024 * 1024;

/// Output of the sampling process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SamplerOutput {
    /// Its lines.
    pub text: String,
    /// Why it did not end by itself.
    pub failure: Option<String>,
}

/// How to sample the GPUs.
#[derive(Clone, Debug)]
pub struct SamplerSpec {
    /// Arguments for this program.
    pub args: Vec<String>,
    /// Returns true for a line that allows the probe to begin.
    pub has_begun: fn(&str) -> bool,
}

/// Output received up to now.
#[derive(Debug, Default)]
struct SamplerBuffer {
    text: Mutex<String>,
    begun: Notify,
}

#[derive(Debug)]
pub(super) struct GpuSampler {
    input: SessionInput,
    process: SessionProcess,
    buffer: Arc<SamplerBuffer>,
    reader: JoinHandle<()>,
    failure: Option<String>,
}

impl GpuSampler {
    /// Starts it, and waits within the time limit until the probe may begin.
    pub(super) async fn start(executable: &Path, spec: &SamplerSpec) -> Result<Self, String> {
        let mut argv = vec![executable.display().to_string()];
        argv.extend_from_slice(&spec.args);
        let argv = guard::guarded_command(executable, &argv);
        let session =
            ProcessSession::start(&argv, &BTreeMap::new()).map_err(|error| error.to_string())?;
        let ProcessSession { input, output, process } = session;
        let received = Arc::new(SamplerBuffer::default());
        let reader = tokio::spawn(read_output(output, Arc::clone(&received), spec.has_begun));
        let trouble = match timeout(START_TIMEOUT, received.begun.notified()).await {
            Ok(()) => None,
            Err(_) => Some(describe_hang(&process, START_TIMEOUT)),
        };
        Ok(Self { input, process, buffer: received, reader, failure: trouble })
    }

    /// Asks the process to finish, waits within the time limit, and ends it.
    pub(super) async fn finish(mut self, is_interrupted: bool) -> SamplerOutput {
        self.input.close();
        let patience =
            if is_interrupted || self.failure.is_some() { KILL_TIMEOUT } else { FINISH_TIMEOUT };
        if timeout(patience, &mut self.reader).await.is_err() {
            self.reader.abort();
            self.failure.get_or_insert_with(|| describe_hang(&self.process, patience));
        }
        self.process.kill();
        // A process that hangs inside the kernel cannot be killed.
        let _ = timeout(KILL_TIMEOUT, self.process.wait()).await;
        let lines = self.buffer.text.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        SamplerOutput { text: lines.clone(), failure: self.failure }
    }
}

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
    buffer: Arc<SamplerBuffer>,
    has_begun: fn(&str) -> bool,
) {
    while let Ok(Some(line)) = output.next_line().await {
        let line = String::from_utf8_lossy(&line);
        let begun = has_begun(&line);
        {
            let mut text = buffer.text.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if text.len() + line.len() < MAX_OUTPUT_BYTES {
                text.push_str(&line);
                text.push('\n');
            }
        }
        if begun {
            buffer.begun.notify_one();
        }
    }
    // Wakes up a waiter after the process ended.
    buffer.begun.notify_one();
}
