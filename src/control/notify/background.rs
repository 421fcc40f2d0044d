//! Sends notices in a thread, for a loop that must not block.
//!
//! The queue is short: occasions that arrive while it is full are dropped, because the next one
//! reports the state at that time.

use std::io;
use std::sync::mpsc;
use std::sync::mpsc::{SyncSender, TrySendError};

use super::state::NotifyStateStore;
use super::{NotifyRequest, NotifySettings, send_notices};
use engine::report::notice::NoticeOccasion;
use model::journal::ClockStamp;

const QUEUE_LENGTH: usize = 4;

/// The sender of the thread's queue.
#[derive(Clone, Debug)]
pub struct BackgroundNotifier {
    queue: SyncSender<NoticeOccasion>,
}

impl BackgroundNotifier {
    /// Starts the thread; `clock` gives the time, `say` receives its notes.
    pub fn start(
        notify: NotifySettings,
        store: NotifyStateStore,
        seed: u64,
        clock: impl Fn() -> ClockStamp + Send + 'static,
        log: impl Fn(&str) + Send + 'static,
    ) -> io::Result<Self> {
        let (queue, waiting) = mpsc::sync_channel::<NoticeOccasion>(QUEUE_LENGTH);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("notify".to_owned()).spawn(move || {
            // It ends when the sender is dropped.
            for occasion in waiting {
                let now = clock();
                let telling =
                    NotifyRequest { settings: &notify, occasion: &occasion, now: &now, seed };
                for note in runtime.block_on(send_notices(&telling, &store)) {
                    log(&note);
                }
            }
        })?;
        Ok(Self { queue })
    }

    /// Queues an occasion without waiting; false if the queue is full.
    pub fn submit(&self, occasion: NoticeOccasion) -> bool {
        match self.queue.try_send(occasion) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }
}
