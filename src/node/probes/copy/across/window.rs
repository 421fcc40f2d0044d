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

use serde::Deserialize;
use serde::Serialize;

/// How far apart nodes may begin at least, in milliseconds, however fast their
/// exchanges were so far: chosen, for one that is slower than those.
const LEAST_SKEW_MS: f64 = 20.0;

/// How far apart at most. With exchanges slower than this nothing can be measured
/// at the same time.
const MOST_SKEW_MS: f64 = 1_000.0;

/// How long copies go on before and after the window, in skews: half of one more,
/// for rates that differ from those of the warm-up.
const ROLL: f64 = 1.5;

/// The skew to plan with where exchanges took this long.
pub(super) fn skew(exchange_ms: f64) -> f64 {
    (ROLL * exchange_ms).clamp(LEAST_SKEW_MS, MOST_SKEW_MS)
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
pub(super) struct Plan {
    pub(super) before: u32,
    /// Those that the number is taken over.
    pub(super) window: u32,
    pub(super) after: u32,
}

/// When a window closes, in milliseconds after its stream began, where one copy
/// takes this long and this many are asked for. The longest of all is what
/// [`plan`] wants to know.
pub(super) fn closes(copy_ms: f64, asked: u32, skew_ms: f64) -> f64 {
    let copy_ms = copy_ms.max(LEAST_COPY_MS);
    f64::from(before(copy_ms, skew_ms) + window(copy_ms, asked)) * copy_ms
}

/// The copies of a stream whose copies take this long, where the last window of
/// all who copy in this round closes at this time.
pub(super) fn plan(copy_ms: f64, asked: u32, last_closes: f64, skew_ms: f64) -> Plan {
    let copy_ms = copy_ms.max(LEAST_COPY_MS);
    let rest = (last_closes - closes(copy_ms, asked, skew_ms)).max(0.0) + ROLL * skew_ms;
    Plan {
        before: before(copy_ms, skew_ms),
        window: window(copy_ms, asked),
        after: bounded((rest / copy_ms).ceil(), MOST_AFTER).max(1),
    }
}

fn before(copy_ms: f64, skew_ms: f64) -> u32 {
    bounded((ROLL * skew_ms / copy_ms).ceil(), MOST_COPIES).max(1)
}

/// As many as are asked for, more where they are short, fewer where they are long.
fn window(copy_ms: f64, asked: u32) -> u32 {
    let enough = bounded((LEAST_WINDOW_MS / copy_ms).ceil(), MOST_COPIES).max(asked);
    let most = bounded((MOST_WINDOW_MS / copy_ms).floor(), MOST_COPIES);
    enough.min(most).max(1)
}

fn bounded(count: f64, most: u32) -> u32 {
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
pub(super) struct Span {
    /// The last of its streams to begin began.
    pub(super) starts: f64,
    /// The first of its windows opened.
    pub(super) opens: f64,
    /// The last of its windows closed.
    pub(super) closes: f64,
    /// The first of its streams to stop stopped.
    pub(super) stops: f64,
}

impl Span {
    /// The span of both.
    pub(super) fn and(self, other: Self) -> Self {
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
pub(super) fn covered(spans: &[Span], skew_ms: f64) -> bool {
    let inside = |own: &Span, other: &Span| {
        other.starts + skew_ms <= own.opens && own.closes + skew_ms <= other.stops
    };
    // Streams of one process begin with a skew that is known.
    let own = |span: &Span| span.starts <= span.opens && span.closes <= span.stops;
    spans.iter().enumerate().all(|(at, span)| {
        let mut others = spans.iter().enumerate().filter(|(who, _)| *who != at);
        own(span) && others.all(|(_, other)| inside(span, other))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a stream does whose copies take this long.
    fn span(starts: f64, copy_ms: f64, plan: Plan) -> Span {
        let opens = starts + f64::from(plan.before) * copy_ms;
        let closes = opens + f64::from(plan.window) * copy_ms;
        Span { starts, opens, closes, stops: closes + f64::from(plan.after) * copy_ms }
    }

    #[test]
    fn windows_hold_what_was_asked_for_and_last_long_enough() {
        // 512 MiB at 50 GB/s: 10.7 ms.
        assert_eq!(window(10.7, 16), 16);
        // At 800 GB/s: 0.67 ms, and 16 of them are 10.7 ms.
        assert_eq!(window(0.67, 16), 16);
        assert_eq!(window(0.1, 16), 100);
        assert_eq!(window(100.0, 16), 5, "half a second is enough");
        assert_eq!(window(5_000.0, 16), 1);
        assert_eq!(plan(0.0, 16, f64::NAN, 20.0).window, MOST_COPIES);
        assert_eq!(plan(f64::NAN, 16, 0.0, 20.0).window, MOST_COPIES);
    }

    #[test]
    fn fast_and_slow_pairs_of_one_round_cover_each_other() {
        for (fast, slow) in
            [(0.7, 0.7), (0.7, 7.0), (0.5, 70.0), (1.0, 105.0), (0.7, 900.0), (3.0, 3.5)]
        {
            let last = closes(fast, 16, 20.0).max(closes(slow, 16, 20.0));
            let spans = [fast, slow].map(|ms| span(0.3, ms, plan(ms, 16, last, 20.0)));
            assert!(covered(&spans, 20.0), "{fast} and {slow}: {spans:?}");
        }
    }

    #[test]
    fn rates_a_little_off_are_still_covered_and_half_off_are_told() {
        let last = closes(0.7, 16, 20.0);
        let plans = [plan(0.7, 16, last, 20.0), plan(0.7, 16, last, 20.0)];
        let with = |off: f64| [span(0.0, 0.7, plans[0]), span(0.0, 0.7 * off, plans[1])];
        assert!(covered(&with(1.15), 20.0) && covered(&with(0.87), 20.0));
        assert!(!covered(&with(1.6), 20.0));
        assert!(!covered(&with(0.6), 20.0));
    }

    #[test]
    fn copies_too_short_to_be_covered_are_told() {
        let tiny = plan(0.001, 16, 1.0, 20.0);
        assert_eq!((tiny.before, tiny.window), (MOST_COPIES, MOST_COPIES));
        assert!(!covered(&[span(0.0, 0.001, tiny), span(0.0, 0.001, tiny)], 20.0));
        assert!(covered(&[span(0.0, 0.001, tiny)], 20.0), "alone there is nobody to wait for");
        assert!(covered(&[], 20.0));
    }

    #[test]
    fn slow_exchanges_have_everybody_copy_for_longer() {
        assert_eq!((skew(0.5), skew(100.0), skew(9_000.0)), (20.0, 150.0, 1_000.0));
        let last = closes(0.7, 16, 150.0);
        let spans = [0.7, 0.75].map(|ms| span(0.3, ms, plan(0.7, 16, last, 150.0)));
        assert!(covered(&spans, 150.0) && !covered(&spans, 250.0));
    }
}
