//! Telling people in a thread of its own, for a loop that must not wait.
//!
//! Its queue is short: what comes while it is full is left out, because the next
//! occasion tells what stands then.

use std::io;
use std::sync::mpsc;
use std::sync::mpsc::{SyncSender, TrySendError};

use super::state::NotifyStateStore;
use super::{NotifyRequest, NotifySettings, send_notices};
use engine::report::notice::NoticeOccasion;
use model::journal::ClockStamp;

/// Occasions that wait.
const QUEUE_LENGTH: usize = 4;

/// The way to the thread.
#[derive(Clone, Debug)]
pub struct BackgroundNotifier {
    queue: SyncSender<NoticeOccasion>,
}

impl BackgroundNotifier {
    /// Starts the thread; `clock` says what time it is, `say` is given its notes.
    pub fn start(
        notify: NotifySettings,
        store: NotifyStateStore,
        seed: u64,
        clock: impl Fn() -> ClockStamp + Send + 'static,
        say: impl Fn(&str) + Send + 'static,
    ) -> io::Result<Self> {
        let (queue, waiting) = mpsc::sync_channel::<NoticeOccasion>(QUEUE_LENGTH);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("notify".to_owned()).spawn(move || {
            // It ends when the other side is gone.
            for occasion in waiting {
                let now = clock();
                let telling =
                    NotifyRequest { settings: &notify, occasion: &occasion, now: &now, seed };
                for note in runtime.block_on(send_notices(&telling, &store)) {
                    say(&note);
                }
            }
        })?;
        Ok(Self { queue })
    }

    /// Hands an occasion over without waiting; false where there was no room.
    pub fn submit(&self, occasion: NoticeOccasion) -> bool {
        match self.queue.try_send(occasion) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }
}
