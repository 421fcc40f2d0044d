//! Formats points in time for documents, for stages that must not read a clock.
//!
//! Formatting only: the caller passes the time.

/// Seconds per day.
pub const DAY_S: i64 = 86_400;

/// Seconds since 1970 as RFC 3339, in UTC: `2026-03-04T05:06:07Z`.
///
/// Years start in March, so that a leap day is the last day of its year, and are grouped into
/// eras of 400 years, after which the Gregorian calendar repeats.
pub fn format_rfc3339(unix: i64) -> String {
    /// Days from 0000-03-01 to 1970-01-01.
    const EPOCH: i64 = 719_468;
    /// Days in 400 years.
    const ERA: i64 = 146_097;
    let (day, second) = (unix.div_euclid(DAY_S) + EPOCH, unix.rem_euclid(DAY_S));
    let (era, of_era) = (day.div_euclid(ERA), day.rem_euclid(ERA));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / (ERA - 1)) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    // From March on, every five months together have 153 days.
    let month = (5 * of_year + 2) / 153;
    let date = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn leap_days_and_turns_of_centuries_are_where_the_calendar_has_them() {
        for (unix, shown) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (1_772_600_767, "2026-03-04T05:06:07Z"),
        ] {
            assert_eq!(format_rfc3339(unix), shown);
        }
    }

    proptest! {
        #[test]
        fn it_is_what_a_library_of_dates_shows(unix in -60_000_000_000_i64..250_000_000_000) {
            let known = jiff::Timestamp::from_second(unix).expect("in range");
            prop_assert_eq!(format_rfc3339(unix), known.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        }
    }
}
