//! How many copies a GPU makes in a round, so that its number is taken while
//! all others of the round copy too, although nodes do not begin at the same
//! moment.
//!
//! Pure. Nodes begin when the answer of an exchange reaches them, over ssh or
//! an exec session, and so some milliseconds apart: the skew. So each copies for
//! longer than the skew, then takes its number over a window, and copies on for
//! longer than the skew after the last window of all has closed:
//!
//! ```text
//! node A  |-- before --|-- window --|-- after --|
//! node B      |-- before --|-- window --|-- after --|
//! ```
//!
//! The skew is measured. Of two exchanges of which everybody asks for the second
//! as soon as the first is answered, the second takes as long as the slowest way
//! to the board and back; nobody is told to begin later than that after another.
//! Counts come from the rate of the warm-up. Whether both held is checked after
//! the round by [`covered`], from the times and the skew of that round.

use serde::{Deserialize, Serialize};

/// How far apart nodes may begin at least, in milliseconds, however fast their
/// exchanges were so far: chosen, for one that is slower than those.
const LEAST_SKEW_MS: f64 = 20.0;

/// How far apart at most. With exchanges slower than this nothing can be measured
/// at the same time.
const MOST_SKEW_MS: f64 = 1_000.0;

/// How long copies go on before and after the window, in skews: half of one more,
/// for rates that differ from those of the warm-up.
const SKEW_FACTOR: f64 = 1.5;

/// The skew to plan with where exchanges took this long.
pub(super) fn plan_skew(exchange_ms: f64) -> f64 {
    (SKEW_FACTOR * exchange_ms).clamp(LEAST_SKEW_MS, MOST_SKEW_MS)
}

/// The shortest window. The resolution of events is half a microsecond, so that
/// this is exact to 1 in 10,000.
const LEAST_WINDOW_MS: f64 = 10.0;

/// The longest. A pair at a hundredth of its rate takes fewer copies instead of
/// holding up all others.
const MOST_WINDOW_MS: f64 = 500.0;

/// The most copies before a window, and in it. Copies so short that this is too
/// few are told by [`covered`].
const MOST_COPIES: u32 = 3_000;

/// The most copies after a window: at 0.7 ms each they last four seconds, longer
/// than it takes a pair at a thousandth of its rate to close its window.
const MOST_AFTER: u32 = 6_000;

/// The shortest time that a copy is believed to take, in milliseconds.
const LEAST_COPY_MS: f64 = 0.001;

/// Copies of one stream in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WindowPlan {
    pub(super) before: u32,
    /// Those that the number is taken over.
    pub(super) window: u32,
    pub(super) after: u32,
}

/// When a window closes, in milliseconds after its stream began, where one copy
/// takes this long and this many are asked for. The longest of all is what
/// [`plan`] wants to know.
pub(super) fn window_close_ms(copy_ms: f64, asked: u32, skew_ms: f64) -> f64 {
    let copy_ms = copy_ms.max(LEAST_COPY_MS);
    f64::from(copies_before(copy_ms, skew_ms) + copies_in_window(copy_ms, asked)) * copy_ms
}

/// The copies of a stream whose copies take this long, where the last window of
/// all who copy in this round closes at this time.
pub(super) fn plan_copies(copy_ms: f64, asked: u32, last_closes: f64, skew_ms: f64) -> WindowPlan {
    let copy_ms = copy_ms.max(LEAST_COPY_MS);
    let rest =
        (last_closes - window_close_ms(copy_ms, asked, skew_ms)).max(0.0) + SKEW_FACTOR * skew_ms;
    WindowPlan {
        before: copies_before(copy_ms, skew_ms),
        window: copies_in_window(copy_ms, asked),
        after: clamp_count((rest / copy_ms).ceil(), MOST_AFTER).max(1),
    }
}

fn copies_before(copy_ms: f64, skew_ms: f64) -> u32 {
    clamp_count((SKEW_FACTOR * skew_ms / copy_ms).ceil(), MOST_COPIES).max(1)
}

/// As many as are asked for, more where they are short, fewer where they are long.
fn copies_in_window(copy_ms: f64, asked: u32) -> u32 {
    let enough = clamp_count((LEAST_WINDOW_MS / copy_ms).ceil(), MOST_COPIES).max(asked);
    let most = clamp_count((MOST_WINDOW_MS / copy_ms).floor(), MOST_COPIES);
    enough.min(most).max(1)
}

fn clamp_count(count: f64, most: u32) -> u32 {
    let within = count.clamp(0.0, f64::from(most));
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to a small range, and what is no number becomes 0"
    )]
    let count = within as u32;
    count
}

/// When copies of a process ran in a round, in milliseconds since it was told to
/// begin.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct CopySpan {
    /// The last of its streams to begin began.
    pub(super) starts: f64,
    /// The first of its windows opened.
    pub(super) opens: f64,
    /// The last of its windows closed.
    pub(super) closes: f64,
    /// The first of its streams to stop stopped.
    pub(super) stops: f64,
}

impl CopySpan {
    /// The span of both.
    pub(super) fn merge(self, other: Self) -> Self {
        Self {
            starts: self.starts.max(other.starts),
            opens: self.opens.min(other.opens),
            closes: self.closes.max(other.closes),
            stops: self.stops.min(other.stops),
        }
    }
}

/// Whether every window lay within the time in which all others copied, where
/// nodes began this far apart at most.
pub(super) fn are_windows_covered(spans: &[CopySpan], skew_ms: f64) -> bool {
    let inside = |own: &CopySpan, other: &CopySpan| {
        other.starts + skew_ms <= own.opens && own.closes + skew_ms <= other.stops
    };
    // Streams of one process begin with a skew that is known.
    let own = |span: &CopySpan| span.starts <= span.opens && span.closes <= span.stops;
    spans.iter().enumerate().all(|(at, span)| {
        let mut others = spans.iter().enumerate().filter(|(who, _)| *who != at);
        own(span) && others.all(|(_, other)| inside(span, other))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a stream does whose copies take this long.
    fn span(starts: f64, copy_ms: f64, plan: WindowPlan) -> CopySpan {
        let opens = starts + f64::from(plan.before) * copy_ms;
        let closes = opens + f64::from(plan.window) * copy_ms;
        CopySpan { starts, opens, closes, stops: closes + f64::from(plan.after) * copy_ms }
    }

    #[test]
    fn windows_hold_what_was_asked_for_and_last_long_enough() {
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
    fn rates_a_little_off_are_still_covered_and_half_off_are_told() {
        let last = window_close_ms(0.7, 16, 20.0);
        let plans = [plan_copies(0.7, 16, last, 20.0), plan_copies(0.7, 16, last, 20.0)];
        let with = |off: f64| [span(0.0, 0.7, plans[0]), span(0.0, 0.7 * off, plans[1])];
        assert!(are_windows_covered(&with(1.15), 20.0) && are_windows_covered(&with(0.87), 20.0));
        assert!(!are_windows_covered(&with(1.6), 20.0));
        assert!(!are_windows_covered(&with(0.6), 20.0));
    }

    #[test]
    fn copies_too_short_to_be_covered_are_told() {
        let tiny = plan_copies(0.001, 16, 1.0, 20.0);
        assert_eq!((tiny.before, tiny.window), (MOST_COPIES, MOST_COPIES));
        assert!(!are_windows_covered(&[span(0.0, 0.001, tiny), span(0.0, 0.001, tiny)], 20.0));
        assert!(
            are_windows_covered(&[span(0.0, 0.001, tiny)], 20.0),
            "alone there is nobody to wait for"
        );
        assert!(are_windows_covered(&[], 20.0));
    }

    #[test]
    fn slow_exchanges_have_everybody_copy_for_longer() {
        assert_eq!((plan_skew(0.5), plan_skew(100.0), plan_skew(9_000.0)), (20.0, 150.0, 1_000.0));
        let last = window_close_ms(0.7, 16, 150.0);
        let spans = [0.7, 0.75].map(|ms| span(0.3, ms, plan_copies(0.7, 16, last, 150.0)));
        assert!(are_windows_covered(&spans, 150.0) && !are_windows_covered(&spans, 250.0));
    }
}
