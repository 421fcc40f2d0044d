//! Which clean runs count towards a release: those at least `clean_hours` apart.
//!
//! Pure. An intermittent fault passes two runs in a row, so runs close together count as one.

use super::action_policy::Policy;
use model::time_format::format_rfc3339;

const HOUR_S: f64 = 3_600.0;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CleanRunCount<'a> {
    /// Runs that count, oldest first: time of creation and id.
    pub runs: Vec<(i64, &'a str)>,
    /// Runs that were made too soon after one that counts.
    pub early: Vec<&'a str>,
    /// The earliest time of the next run that counts, in seconds since 1970.
    pub from: Option<i64>,
}

/// The least time between two clean runs that count, in seconds.
pub fn min_clean_gap_s(policy: &Policy) -> i64 {
    #[expect(clippy::cast_possible_truncation, reason = "hours are far below 2^53 seconds")]
    let seconds = (policy.clean_hours * HOUR_S).ceil() as i64;
    seconds
}

/// Counts runs by their times of creation. The first counts, then each that was made long
/// enough after the last one that counts.
pub(super) fn count_clean_runs<'a>(
    runs: impl IntoIterator<Item = (i64, &'a str)>,
    apart_s: i64,
) -> CleanRunCount<'a> {
    let mut runs: Vec<(i64, &str)> = runs.into_iter().collect();
    runs.sort_unstable();
    let mut counted = CleanRunCount::default();
    for (made, run) in runs {
        if counted.from.is_some_and(|from| made < from) {
            counted.early.push(run);
        } else {
            counted.from = Some(made.saturating_add(apart_s));
            counted.runs.push((made, run));
        }
    }
    counted
}

impl CleanRunCount<'_> {
    /// The earliest time of the next run that counts, if it is in the future or a run was
    /// early.
    pub(super) fn explain_wait(&self, now: i64) -> Option<String> {
        let from = self.from.filter(|from| !self.early.is_empty() || now < *from)?;
        Some(format!("the next run counts from {} on", format_rfc3339(from)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn runs_too_close_together_are_one() {
        let of = |made: &[i64], apart| {
            let runs: Vec<i64> = count_clean_runs(made.iter().map(|at| (*at, "r")), apart)
                .runs
                .into_iter()
                .map(|(at, _)| at)
                .collect();
            runs
        };
        assert_eq!(of(&[100, 143], 3_600), [100]);
        assert_eq!(of(&[100, 3_699], 3_600), [100]);
        assert_eq!(of(&[100, 3_700], 3_600), [100, 3_700]);
        // An early run in between does not delay the next one.
        assert_eq!(of(&[3_700, 143, 100], 3_600), [100, 3_700]);
        assert_eq!(of(&[100, 100], 0), [100, 100]);
        assert_eq!(count_clean_runs([], 3_600).explain_wait(0), None);
        let two = count_clean_runs([(100, "a"), (143, "b")], 3_600);
        assert_eq!((two.early.as_slice(), two.from), (&["b"][..], Some(3_700)));
        assert_eq!(
            two.explain_wait(9_999).as_deref(),
            Some("the next run counts from 1970-01-01T01:01:40Z on")
        );
        assert_eq!(count_clean_runs([(100, "a")], 3_600).explain_wait(9_999), None);
    }

    #[test]
    fn the_default_is_an_hour() {
        assert_eq!(min_clean_gap_s(&Policy::default()), 3_600);
    }

    proptest! {
        #[test]
        fn all_that_count_are_apart_and_no_other_choice_counts_more(
            made in proptest::collection::vec(0_i64..40, 0..8), apart in 0_i64..15,
        ) {
            let all = count_clean_runs(made.iter().map(|at| (*at, "r")), apart);
            let times: Vec<i64> = all.runs.iter().map(|(at, _)| *at).collect();
            prop_assert!(times.windows(2).all(|two| apart <= two[1] - two[0]));
            prop_assert_eq!(all.runs.len() + all.early.len(), made.len());
            let most = (0_u32..1 << made.len()).filter_map(|set| {
                let mut chosen: Vec<i64> = made.iter().enumerate()
                    .filter(|(at, _)| set >> at & 1 == 1).map(|(_, it)| *it).collect();
                chosen.sort_unstable();
                chosen.windows(2).all(|two| apart <= two[1] - two[0]).then_some(chosen.len())
            }).max();
            prop_assert_eq!(Some(times.len()), most);
        }
    }
}
