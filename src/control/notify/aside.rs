//! Telling people in a thread of its own, for a loop that must not wait.
//!
//! Its queue is short: what comes while it is full is left out, because the next
//! occasion tells what stands then.

use std::io;
use std::sync::mpsc;
use std::sync::mpsc::SyncSender;
use std::sync::mpsc::TrySendError;

use super::Notify;
use super::Telling;
use super::memory::Store;
use super::tell;
use engine::report::notice::Occasion;
use model::journal::Stamp;

/// Occasions that wait.
const WAITING: usize = 4;

/// The way to the thread.
#[derive(Clone, Debug)]
pub struct Aside {
    queue: SyncSender<Occasion>,
}

impl Aside {
    /// Starts the thread; `clock` says what time it is, `say` is given its notes.
    pub fn start(
        notify: Notify,
        store: Store,
        seed: u64,
        clock: impl Fn() -> Stamp + Send + 'static,
        say: impl Fn(&str) + Send + 'static,
    ) -> io::Result<Self> {
        let (queue, waiting) = mpsc::sync_channel::<Occasion>(WAITING);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("notify".to_owned()).spawn(move || {
            // It ends when the other side is gone.
            for occasion in waiting {
                let now = clock();
                let telling = Telling { notify: &notify, occasion: &occasion, now: &now, seed };
                for note in runtime.block_on(tell(&telling, &store)) {
                    say(&note);
                }
            }
        })?;
        Ok(Self { queue })
    }

    /// Hands an occasion over without waiting; false where there was no room.
    pub fn tell(&self, occasion: Occasion) -> bool {
        match self.queue.try_send(occasion) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }
}
