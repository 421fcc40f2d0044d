//! Plans how many copies each GPU makes in a round, so that its bandwidth is measured while all
//! other GPUs of the round copy too, although nodes do not start at the same moment.
//!
//! Pure. Nodes start when the answer of an exchange reaches them, over ssh or an exec session, and
//! so some milliseconds apart: the skew. Each node therefore copies for longer than the skew, then
//! takes its number over a window, and continues to copy for longer than the skew after the last
//! window of the round has closed:
//!
//! ```text
//! node A  |-- before --|-- window --|-- after --|
//! node B      |-- before --|-- window --|-- after --|
//! ```
//!
//! The skew is measured. When every process requests a second exchange immediately after the first
//! is answered, the second takes as long as the slowest path to the coordinator and back; no
//! process receives its start later than that after another. Counts follow from the rate of the
//! warm-up. After the round, [`are_windows_covered`] checks both with the times and the skew of
//! that round.

use serde::{Deserialize, Serialize};

/// Minimum assumed skew in milliseconds, however fast the exchanges were: a chosen margin for a
/// slower one.
const LEAST_SKEW_MS: f64 = 20.0;

/// Maximum skew. With slower exchanges, concurrent measurement is impossible.
const MOST_SKEW_MS: f64 = 1_000.0;

/// Duration of copies before and after the window, in skews: the extra half covers rates that
/// differ from the warm-up's.
const SKEW_FACTOR: f64 = 1.5;

/// The skew to plan with if exchanges took this long.
pub(super) fn plan_skew(exchange_ms: f64) -> f64 {
    (SKEW_FACTOR * exchange_ms).clamp(LEAST_SKEW_MS, MOST_SKEW_MS)
}

/// Minimum window. The resolution of events is half a microsecond, so this is exact to 1 in 10,000.
const LEAST_WINDOW_MS: f64 = 10.0;

/// Maximum window. A pair at a hundredth of its rate makes fewer copies instead of holding up all
/// others.
const MOST_WINDOW_MS: f64 = 500.0;

/// Maximum copies before and in a window. [`are_windows_covered`] detects copies so short that this
/// is too few.
const MOST_COPIES: u32 = 3_000;

/// Maximum copies after a window: at 0.7 ms each they last four seconds, longer than a pair at a
/// thousandth of its rate needs to close its window.
const MOST_AFTER: u32 = 6_000;

/// Minimum plausible duration of a copy in milliseconds.
const LEAST_COPY_MS: f64 = 0.001;

/// Copies of one stream in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WindowPlan {
    pub(super) before: u32,
    /// Copies that the number covers.
    pub(super) window: u32,
    pub(super) after: u32,
}

/// When a window closes, in milliseconds after its stream began, for copies of this duration and
/// this many requested. [`plan_copies`] needs the maximum over all processes.
pub(super) fn window_close_ms(copy_ms: f64, requested: u32, skew_ms: f64) -> f64 {
    let copy_ms = copy_ms.max(LEAST_COPY_MS);
    f64::from(copies_before(copy_ms, skew_ms) + copies_in_window(copy_ms, requested)) * copy_ms
}

/// Plans the copies of a stream with this duration per copy, if the last window of the round closes
/// at this time.
pub(super) fn plan_copies(
    copy_ms: f64,
    requested: u32,
    last_closes: f64,
    skew_ms: f64,
) -> WindowPlan {
    let copy_ms = copy_ms.max(LEAST_COPY_MS);
    let rest = (last_closes - window_close_ms(copy_ms, requested, skew_ms)).max(0.0)
        + SKEW_FACTOR * skew_ms;
    WindowPlan {
        before: copies_before(copy_ms, skew_ms),
        window: copies_in_window(copy_ms, requested),
        after: clamp_count((rest / copy_ms).ceil(), MOST_AFTER).max(1),
    }
}

fn copies_before(copy_ms: f64, skew_ms: f64) -> u32 {
    clamp_count((SKEW_FACTOR * skew_ms / copy_ms).ceil(), MOST_COPIES).max(1)
}

/// The requested number; more if copies are short, fewer if they are long.
fn copies_in_window(copy_ms: f64, requested: u32) -> u32 {
    let enough = clamp_count((LEAST_WINDOW_MS / copy_ms).ceil(), MOST_COPIES).max(requested);
    let most = clamp_count((MOST_WINDOW_MS / copy_ms).floor(), MOST_COPIES);
    enough.min(most).max(1)
}

fn clamp_count(count: f64, most: u32) -> u32 {
    let within = count.clamp(0.0, f64::from(most));
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to a small range, and NaN becomes 0"
    )]
    let count = within as u32;
    count
}

/// Times of a process's copies in a round, in milliseconds since its start signal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct CopySpan {
    /// Start of its last stream to start.
    pub(super) starts: f64,
    /// Start of its first window.
    pub(super) opens: f64,
    /// End of its last window.
    pub(super) closes: f64,
    /// End of its first stream to end.
    pub(super) stops: f64,
}

impl CopySpan {
    pub(super) fn merge(self, other: Self) -> Self {
        Self {
            starts: self.starts.max(other.starts),
            opens: self.opens.min(other.opens),
            closes: self.closes.max(other.closes),
            stops: self.stops.min(other.stops),
        }
    }
}

/// True if every window lies within the time in which all others copied, given this maximum skew
/// between nodes.
pub(super) fn are_windows_covered(spans: &[CopySpan], skew_ms: f64) -> bool {
    let inside = |own: &CopySpan, other: &CopySpan| {
        other.starts + skew_ms <= own.opens && own.closes + skew_ms <= other.stops
    };
    // The skew between streams of one process is known.
    let own = |span: &CopySpan| span.starts <= span.opens && span.closes <= span.stops;
    spans.iter().enumerate().all(|(at, span)| {
        let mut others = spans.iter().enumerate().filter(|(index, _)| *index != at);
        own(span) && others.all(|(_, other)| inside(span, other))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The span of a stream whose copies take this long.
    fn span(starts: f64, copy_ms: f64, plan: WindowPlan) -> CopySpan {
        let opens = starts + f64::from(plan.before) * copy_ms;
        let closes = opens + f64::from(plan.window) * copy_ms;
        CopySpan { starts, opens, closes, stops: closes + f64::from(plan.after) * copy_ms }
    }

    #[test]
    fn windows_contain_the_requested_copies_and_last_long_enough() {
        // 512 MiB at 50 GB/s: 10.7 ms.
        assert_eq!(copies_in_window(10.7, 16), 16);
        // At 800 GB/s: 0.67 ms, and 16 of them are 10.7 ms.
        assert_eq!(copies_in_window(0.67, 16), 16);
        assert_eq!(copies_in_window(0.1, 16), 100);
        assert_eq!(copies_in_window(100.0, 16), 5, "half a second is enough");
        assert_eq!(copies_in_window(5_000.0, 16), 1);
        assert_eq!(plan_copies(0.0, 16, f64::NAN, 20.0).window, MOST_COPIES);
        assert_eq!(plan_copies(f64::NAN, 16, 0.0, 20.0).window, MOST_COPIES);
    }

    #[test]
    fn fast_and_slow_pairs_of_one_round_cover_each_other() {
        for (fast, slow) in
            [(0.7, 0.7), (0.7, 7.0), (0.5, 70.0), (1.0, 105.0), (0.7, 900.0), (3.0, 3.5)]
        {
            let last = window_close_ms(fast, 16, 20.0).max(window_close_ms(slow, 16, 20.0));
            let spans = [fast, slow].map(|ms| span(0.3, ms, plan_copies(ms, 16, last, 20.0)));
            assert!(are_windows_covered(&spans, 20.0), "{fast} and {slow}: {spans:?}");
        }
    }

    #[test]
    fn small_rate_errors_are_covered_and_large_ones_are_detected() {
        let last = window_close_ms(0.7, 16, 20.0);
        let plans = [plan_copies(0.7, 16, last, 20.0), plan_copies(0.7, 16, last, 20.0)];
        let with = |off: f64| [span(0.0, 0.7, plans[0]), span(0.0, 0.7 * off, plans[1])];
        assert!(are_windows_covered(&with(1.15), 20.0) && are_windows_covered(&with(0.87), 20.0));
        assert!(!are_windows_covered(&with(1.6), 20.0));
        assert!(!are_windows_covered(&with(0.6), 20.0));
    }

    #[test]
    fn copies_too_short_to_be_covered_are_detected() {
        let tiny = plan_copies(0.001, 16, 1.0, 20.0);
        assert_eq!((tiny.before, tiny.window), (MOST_COPIES, MOST_COPIES));
        assert!(!are_windows_covered(&[span(0.0, 0.001, tiny), span(0.0, 0.001, tiny)], 20.0));
        assert!(
            are_windows_covered(&[span(0.0, 0.001, tiny)], 20.0),
            "a single process waits for no other"
        );
        assert!(are_windows_covered(&[], 20.0));
    }

    #[test]
    fn slow_exchanges_make_every_process_copy_for_longer() {
        assert_eq!((plan_skew(0.5), plan_skew(100.0), plan_skew(9_000.0)), (20.0, 150.0, 1_000.0));
        let last = window_close_ms(0.7, 16, 150.0);
        let spans = [0.7, 0.75].map(|ms| span(0.3, ms, plan_copies(0.7, 16, last, 150.0)));
        assert!(are_windows_covered(&spans, 150.0) && !are_windows_covered(&spans, 250.0));
    }
}
