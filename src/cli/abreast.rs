//! The same work on many things, several at a time, with what came of it in their order.
//!
//! For work that reads files and computes; nothing that waits for somebody.

use std::sync::atomic::{AtomicUsize, Ordering};

/// What `work` makes of each, in their order. As many at a time as there are processors.
pub(super) fn parallel_map<T: Sync, R: Send>(all: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_done_once_and_told_in_order() {
        let numbers: Vec<u32> = (0..1_000).collect();
        let doubled: Vec<u32> = numbers.iter().map(|number| number * 2).collect();
        assert_eq!(parallel_map(&numbers, |number| number * 2), doubled);
        assert!(parallel_map(&[], |number: &u32| *number).is_empty());
    }
}
