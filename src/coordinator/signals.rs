//! The signals that end a run early.

use tokio::signal::unix::Signal;
use tokio::signal::unix::SignalKind;
use tokio::signal::unix::signal;

/// The signals that are listened to.
#[derive(Debug)]
pub struct Signals(Vec<(&'static str, Signal)>);

impl Signals {
    /// Starts to listen.
    pub fn listen() -> Self {
        let kinds = [
            ("interrupted", SignalKind::interrupt()),
            ("terminated", SignalKind::terminate()),
            ("terminal closed", SignalKind::hangup()),
        ];
        let heard = kinds.into_iter().filter_map(|(name, kind)| Some((name, signal(kind).ok()?)));
        Self(heard.collect())
    }

    /// The next one; never, where none can be listened to.
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
