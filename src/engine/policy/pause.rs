//! A pause that a user requested: no drains, no marks and no measurements until it ends.
//!
//! Pure. Within one boot the uptime counts, so that a clock that jumps ends no pause.

use super::journal_state::JournalState;
use super::schedule::elapsed_s;
use model::journal::ClockStamp;
use model::text::clean;

/// A pause with its author and end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatePause {
    /// The user who requested it.
    pub by: String,
    /// Why.
    pub why: String,
    /// Duration in seconds.
    pub for_s: u64,
    /// When it ends, RFC 3339.
    pub until: String,
}

/// The pause that holds now, with its start.
pub fn active_pause<'a>(ledger: &'a JournalState, now: &ClockStamp) -> Option<&'a GatePause> {
    let (since, pause) = ledger.pause.as_ref()?;
    let lasts = i64::try_from(pause.for_s).unwrap_or(i64::MAX);
    (elapsed_s(since, now) < lasts).then_some(pause)
}

/// The end, the author and the reason of a pause, for messages.
pub fn describe_pause(pause: &GatePause) -> String {
    let [until, by, why] = [&pause.until, &pause.by, &pause.why].map(|it| clean(it));
    format!("paused until {until} by {by}: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::journal::{JOURNAL_FORMAT, JournalEntry, JournalEvent};

    fn at(unix: i64, boot: &str, uptime_s: f64) -> ClockStamp {
        ClockStamp { at: unix.to_string(), unix, boot: boot.to_owned(), uptime_s }
    }

    fn ledger(events: Vec<JournalEvent>) -> JournalState {
        let entries: Vec<JournalEntry> = (1..)
            .zip(events)
            .map(|(seq, event)| JournalEntry {
                format: JOURNAL_FORMAT.to_owned(),
                seq,
                stamp: at(1_000, "a", 50.0),
                epoch: 1,
                event,
            })
            .collect();
        JournalState::from_entries(&entries)
    }

    fn paused() -> JournalEvent {
        let (by, why, until) = ("ann".to_owned(), "switch swap".to_owned(), "T".to_owned());
        JournalEvent::Paused { by, why, for_s: 600, until }
    }

    #[test]
    fn a_pause_holds_for_its_time_by_uptime_and_in_another_boot_by_the_clock() {
        let ledger = ledger(vec![paused()]);
        let holds = |now: ClockStamp| active_pause(&ledger, &now).is_some();
        assert!(holds(at(1_000, "a", 50.0)));
        assert!(holds(at(1_599, "a", 649.0)));
        assert!(!holds(at(1_600, "a", 650.0)));
        // The clock was set forward by a day.
        assert!(holds(at(90_000, "a", 60.0)));
        assert!(holds(at(1_599, "b", 1.0)));
        assert!(!holds(at(1_600, "b", 1.0)));
        assert_eq!(
            describe_pause(active_pause(&ledger, &at(1_001, "a", 51.0)).expect("one")),
            "paused until T by ann: switch swap"
        );
    }

    #[test]
    fn a_pause_ends_early_and_another_replaces_it() {
        let resumed = JournalEvent::Resumed { by: "bob".to_owned(), why: None };
        let early = ledger(vec![paused(), resumed.clone()]);
        assert_eq!(active_pause(&early, &at(1_001, "a", 51.0)), None);
        let longer = JournalEvent::Paused {
            by: "bob".to_owned(),
            why: "more".to_owned(),
            for_s: 900,
            until: "U".to_owned(),
        };
        let again = ledger(vec![paused(), longer]);
        assert_eq!(
            active_pause(&again, &at(1_700, "a", 750.0)).map(|it| it.until.as_str()),
            Some("U")
        );
        assert_eq!(active_pause(&ledger(vec![resumed]), &at(1_001, "a", 51.0)), None);
    }
}
