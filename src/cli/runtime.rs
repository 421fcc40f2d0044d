//! Process facilities of commands: the async runtime, worker threads, a seed.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::exit::CommandError;

/// Applies `work` to each item on as many threads as there are processors; results keep the order
/// of the items.
pub(crate) fn parallel_map<T: Sync, R: Send>(all: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(all.len());
    let worker = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(one) = all.get(index) else { return done };
            done.push((index, work(one)));
        }
    };
    let mut done: Vec<(usize, R)> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        let join = |handle: std::thread::ScopedJoinHandle<'_, _>| match handle.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        handles.into_iter().flat_map(join).collect()
    });
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, one)| one).collect()
}

/// The single-threaded runtime in which a command waits for programs and servers.
pub(crate) fn build_runtime() -> Result<tokio::runtime::Runtime, CommandError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CommandError::Environment(format!("no runtime: {error}")))
}

/// A number that differs between two starts of the program; run ids contain it.
#[expect(clippy::disallowed_methods, reason = "the command line is where the clock is read")]
pub(crate) fn random_number() -> u64 {
    let nanos = jiff::Timestamp::now().as_nanosecond().unsigned_abs();
    let low = u64::try_from(nanos & u128::from(u64::MAX)).unwrap_or(0);
    low ^ (u64::from(std::process::id()) << 40)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_processed_once_and_results_keep_the_order() {
        let numbers: Vec<u32> = (0..1_000).collect();
        let doubled: Vec<u32> = numbers.iter().map(|number| number * 2).collect();
        assert_eq!(parallel_map(&numbers, |number| number * 2), doubled);
        assert!(parallel_map(&[], |number: &u32| *number).is_empty());
    }
}
