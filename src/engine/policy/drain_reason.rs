//! The reason that fabricgate writes with a drain, and how it is recognised later.
//!
//! `fabricgate:<class>:<run> e<epoch>`: `sinfo -R` shows 20 characters, so the class comes
//! first. Run and node together identify the verdict; nodes of one run and class share a
//! reason, so that one call drains them all. Slurm appends to reasons (`: Not responding`, `:
//! reboot issued`), so a reason is recognised by its beginning, and the appended text is kept
//! apart: it shows that something happened to the node since. Earlier versions wrote the run
//! before the class; such reasons are read as well.

/// The prefix of every reason that fabricgate writes.
pub const PREFIX: &str = "fabricgate:";

/// Longest reason that is written: `sinfo -R` and tables of other tools cut or break long ones,
/// and the reason is an id, not a report.
pub const LONGEST: usize = 100;

/// Longest run and class in a reason. With the prefix and the longest epoch (20 digits) the
/// total is at most [`LONGEST`]: 11 + 32 + 1 + 34 + 2 + 20.
const LONGEST_RUN: usize = 32;
const LONGEST_CLASS: usize = 34;

/// The text that Slurm appends when a node stops responding.
const NOT_RESPONDING: &str = "Not responding";

/// A reason written by fabricgate, in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnReason {
    /// The run.
    pub run: String,
    /// The class of the worst finding.
    pub class: String,
    /// The gate's turn that wrote it.
    pub epoch: Option<u64>,
    /// The text appended since, without the separator.
    pub appended: Option<String>,
}

impl OwnReason {
    /// Whether both name the same drain, regardless of appended text. The turn counts if both name
    /// it: another turn is another drain.
    pub fn is_same(&self, other: &Self) -> bool {
        let turns = self.epoch.zip(other.epoch);
        self.run == other.run && self.class == other.class && turns.is_none_or(|(a, b)| a == b)
    }

    /// Whether the appended text shows only that the node stopped responding.
    pub fn is_not_responding_only(&self) -> bool {
        let mut parts = self.appended.iter().flat_map(|text| text.split(" : ")).peekable();
        parts.peek().is_some() && parts.all(|part| part.trim() == NOT_RESPONDING)
    }
}

/// The reason for a verdict. Only harmless characters are used: Slurm stores any byte, and
/// `sinfo -R` prints it raw.
pub fn format_reason(run: &str, class: &str, epoch: u64) -> String {
    let (run, class) = (to_plain(run, LONGEST_RUN), to_plain(class, LONGEST_CLASS));
    format!("{PREFIX}{class}:{run} e{epoch}")
}

/// Whether a text starts with the prefix.
pub fn is_ours(text: &str) -> bool {
    text.starts_with(PREFIX)
}

/// Splits a reason into its parts; `None` if fabricgate did not write it.
pub fn parse_reason(reason: &str) -> Option<OwnReason> {
    let rest = reason.strip_prefix(PREFIX)?;
    let (first, rest) = split_word(rest)?;
    let (second, rest) = split_word(rest.strip_prefix(':')?)?;
    let is_old = is_run_id(first) && !is_run_id(second);
    let (class, run) = if is_old { (second, first) } else { (first, second) };
    let (epoch, rest) = match split_epoch(rest) {
        Some((epoch, rest)) => (Some(epoch), rest),
        None => (None, rest),
    };
    let appended = rest.trim();
    let appended = appended.strip_prefix(": ").unwrap_or(appended).trim();
    Some(OwnReason {
        run: run.to_owned(),
        class: class.to_owned(),
        epoch,
        appended: (!appended.is_empty()).then(|| appended.to_owned()),
    })
}

/// Whether a reason names this class; long classes are cut when written.
pub fn is_class(own: &OwnReason, class: &str) -> bool {
    is_same_class(&own.class, class)
}

/// Whether the class in a reason is this one.
pub fn is_same_class(written: &str, class: &str) -> bool {
    written == to_plain(class, LONGEST_CLASS)
}

/// Whether a text starts like a run id (`record::id`): `20261121-065544-`.
pub fn is_run_id(text: &str) -> bool {
    let mut parts = text.split('-');
    let digits = |part: Option<&str>, count| {
        part.is_some_and(|it| it.len() == count && it.bytes().all(|byte| byte.is_ascii_digit()))
    };
    digits(parts.next(), 8) && digits(parts.next(), 6) && parts.next().is_some()
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

/// A name in the form allowed in a reason: never empty, so that it can be parsed again.
fn to_plain(text: &str, longest: usize) -> String {
    let plain = text.chars().take(longest).map(|c| if is_plain(c) { c } else { '-' });
    let plain: String = plain.collect();
    if plain.is_empty() { "-".to_owned() } else { plain }
}

/// Splits off the plain characters at the beginning.
fn split_word(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c| !is_plain(c)).unwrap_or(text.len());
    (0 < end).then(|| text.split_at(end))
}

/// Splits off ` e<epoch>` at the beginning.
fn split_epoch(text: &str) -> Option<(u64, &str)> {
    let text = text.strip_prefix(" e")?;
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    // `e7th of May` is a user's text, not a turn.
    let ends_here = rest.chars().next().is_none_or(|c| !is_plain(c));
    Some((digits.parse().ok().filter(|_| ends_here)?, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OURS: &str = "fabricgate:nvlink-low:20261121-065544-3f9a1c e12";
    /// The same reason in the form of earlier versions.
    const OLD: &str = "fabricgate:20261121-065544-3f9a1c:nvlink-low e12";

    #[test]
    fn a_reason_is_parsed_despite_appended_text() {
        assert_eq!(format_reason("20261121-065544-3f9a1c", "nvlink-low", 12), OURS);
        for (behind, appended) in [
            ("", None),
            (" : Not responding", Some("Not responding")),
            (" : reboot issued", Some("reboot issued")),
            (
                " : Not responding : reboot issued : reboot timed out",
                Some("Not responding : reboot issued : reboot timed out"),
            ),
            (" keep this, bob", Some("keep this, bob")),
            ("; ticket 12\nsee there", Some("; ticket 12\nsee there")),
        ] {
            let read = parse_reason(&format!("{OURS}{behind}")).expect("ours");
            assert_eq!(read.run, "20261121-065544-3f9a1c");
            assert_eq!((read.class.as_str(), read.epoch), ("nvlink-low", Some(12)), "{behind:?}");
            assert_eq!(read.appended.as_deref(), appended, "{behind:?}");
        }
    }

    #[test]
    fn a_foreign_reason_that_contains_the_prefix_is_not_fabricgate_s() {
        for foreign in [
            "",
            "Not responding",
            "bob: undo of fabricgate:class:run e1",
            " fabricgate:class:run e1",
            "Fabricgate:run:class e1",
            "fabricgate",
            "fabricgate:",
            "fabricgate::run e1",
            "fabricgate:class",
            "fabricgate:class:",
            "fabricgate: see ticket 7",
            "fabricgate says: broken",
            "slurm-operator: fabricgate:class:run e1",
        ] {
            assert_eq!(parse_reason(foreign), None, "{foreign:?}");
        }
    }

    #[test]
    fn a_user_s_text_in_place_of_the_turn_counts_as_appended() {
        for (reason, appended) in [
            ("fabricgate:c:r e7th of May", "e7th of May"),
            ("fabricgate:c:r edited by bob", "edited by bob"),
            ("fabricgate:c:r : Not responding", "Not responding"),
            ("fabricgate:c:r e99999999999999999999999", "e99999999999999999999999"),
        ] {
            let read = parse_reason(reason).expect("ours");
            assert_eq!((read.epoch, read.appended.as_deref()), (None, Some(appended)), "{reason}");
        }
    }

    #[test]
    fn only_a_lost_node_is_lost_only() {
        let lost = |text: &str| {
            parse_reason(&format!("{OURS}{text}")).expect("ours").is_not_responding_only()
        };
        assert!(lost(" : Not responding"));
        assert!(lost(" : Not responding : Not responding"));
        assert!(!lost(""));
        assert!(!lost(" : Not responding : reboot issued"));
        assert!(!lost(" : Not responding, bob looks at it"));
    }

    #[test]
    fn another_turn_is_another_drain() {
        let of = |text: &str| parse_reason(text).expect("ours");
        assert!(of(OURS).is_same(&of(&format!("{OURS} : Not responding"))));
        assert!(of(OURS).is_same(&of("fabricgate:nvlink-low:20261121-065544-3f9a1c")));
        assert!(!of(OURS).is_same(&of("fabricgate:nvlink-low:20261121-065544-3f9a1c e13")));
        assert!(!of(OURS).is_same(&of("fabricgate:nvlink:20261121-065544-3f9a1c e12")));
        assert!(!of(OURS).is_same(&of("fabricgate:nvlink-low:20261121-065544-3f9a1d e12")));
    }

    #[test]
    fn sinfo_shows_the_class_in_its_20_characters() {
        assert_eq!(&OURS[..20], "fabricgate:nvlink-lo");
        assert!(OLD.starts_with(PREFIX) && OURS.starts_with(PREFIX));
        assert_eq!(parse_reason(OLD), parse_reason(OURS));
        assert!(parse_reason(OLD).expect("ours").is_same(&parse_reason(OURS).expect("ours")));
    }

    proptest! {
        #[test]
        fn a_mark_of_the_older_form_is_the_same_mark(
            run in "[0-9]{8}-[0-9]{6}-[0-9a-f]{6}", class in "[a-z][a-z0-9-]{0,33}",
            epoch in proptest::option::of(any::<u64>()),
            appended in "( : Not responding| : reboot issued|, bob looks)?",
        ) {
            let turn = epoch.map(|epoch| format!(" e{epoch}")).unwrap_or_default();
            let old = parse_reason(&format!("{PREFIX}{run}:{class}{turn}{appended}")).expect("ours");
            let new = parse_reason(&format!("{PREFIX}{class}:{run}{turn}{appended}")).expect("ours");
            prop_assert_eq!(&old, &new);
            prop_assert!(old.is_same(&new));
            prop_assert_eq!((old.run, old.class, old.epoch), (run, class, epoch));
        }

        #[test]
        fn whatever_is_written_is_short_harmless_and_read_again(
            run in any::<String>(), class in any::<String>(), epoch in any::<u64>(),
        ) {
            let written = format_reason(&run, &class, epoch);
            prop_assert!(written.len() <= LONGEST, "{written}");
            let harmless = |c: char| c.is_ascii_alphanumeric() || ".:_- ".contains(c);
            prop_assert!(written.chars().all(harmless), "{written:?}");
            let again = parse_reason(&written).expect("ours");
            prop_assert_eq!((again.epoch, &again.appended), (Some(epoch), &None));
            prop_assert_eq!(format_reason(&again.run, &again.class, epoch), written);
        }

        #[test]
        fn no_text_makes_reading_fail(text in any::<String>()) {
            prop_assert_eq!(parse_reason(&text).is_some() && !text.starts_with(PREFIX), false);
            parse_reason(&format!("{PREFIX}{text}"));
        }
    }
}
