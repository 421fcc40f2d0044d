//! The signals that end a run early.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals to wait for.
#[derive(Debug)]
pub struct StopSignals(Vec<(&'static str, Signal)>);

impl StopSignals {
    /// Starts listening for the signals.
    pub fn listen() -> Self {
        let kinds = [
            ("interrupted", SignalKind::interrupt()),
            ("terminated", SignalKind::terminate()),
            ("terminal closed", SignalKind::hangup()),
        ];
        // A process under nohup survives the end of its terminal.
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let hangup = SignalKind::hangup();
        let stays = is_ignored(&status, hangup);
        let streams = kinds.into_iter().filter(|(_, kind)| !(stays && *kind == hangup));
        let streams = streams.filter_map(|(name, kind)| Some((name, signal(kind).ok()?)));
        Self(streams.collect())
    }

    /// The next signal; never returns if none can be received.
    pub async fn next(&mut self) -> &'static str {
        std::future::poll_fn(|context| {
            for (name, signal) in &mut self.0 {
                if signal.poll_recv(context).is_ready() {
                    return std::task::Poll::Ready(*name);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}

/// Whether the process with this status (`proc(5)`) ignores a signal.
fn is_ignored(status: &str, kind: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let bit = u32::try_from(kind.as_raw_value() - 1).ok().and_then(|at| 1_u64.checked_shl(at));
    bit.is_some_and(|bit| mask & bit != 0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::watch;

    use super::*;
    use node::exec;

    #[tokio::test]
    async fn an_ignored_hangup_is_detected() {
        let script = "trap '' HUP; exec cat /proc/self/status";
        let argv = ["sh", "-c", script].map(str::to_owned).into();
        let limit = Duration::from_secs(60);
        let request = exec::ProcessRequest { argv, limit, capture: 1 << 16 };
        let (_sender, stop) = watch::channel(false);
        let output = exec::run(&request, stop).await.expect("started").stdout.bytes;
        let status = String::from_utf8(output).expect("text");
        assert!(is_ignored(&status, SignalKind::hangup()), "{status}");
        assert!(!is_ignored(&status, SignalKind::terminate()), "{status}");
        assert!(!is_ignored("SigIgn:\t0000000000001000\n", SignalKind::hangup()));
        assert!(!is_ignored("", SignalKind::hangup()));
    }
}
