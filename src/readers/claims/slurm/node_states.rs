//! Flags of node states, normalised to Slurm's long form.
//!
//! `sinfo` shows one word for a combination (`drained` is `IDLE` or `DOWN` with `DRAIN`), which
//! is kept: it cannot be split again.

use crate::claims::reader_util::sanitize_text;

/// Short and lower-case forms of `sinfo`, with the long form.
const SHORT_FORMS: &[(&str, &str)] = &[
    ("alloc", "ALLOCATED"),
    ("mix", "MIXED"),
    ("comp", "COMPLETING"),
    ("drain", "DRAINED"),
    ("drng", "DRAINING"),
    ("failg", "FAILING"),
    ("maint", "MAINTENANCE"),
    ("resv", "RESERVED"),
    ("plnd", "PLANNED"),
    ("block", "BLOCKED"),
    ("unk", "UNKNOWN"),
    ("inval", "INVALID_REG"),
    ("futr", "FUTURE"),
    ("boot", "REBOOT_ISSUED"),
    ("reboot", "REBOOT_ISSUED"),
    ("pow_dn", "POWERING_DOWN"),
    ("pow_up", "POWERING_UP"),
    ("powering_down", "POWERING_DOWN"),
    ("powering_up", "POWERING_UP"),
    ("powered_down", "POWERED_DOWN"),
    ("npc", "PERFCTRS"),
];

/// Long forms, which need no change.
const LONG_FORMS: &[&str] = &[
    "ALLOCATED",
    "MIXED",
    "IDLE",
    "DOWN",
    "UNKNOWN",
    "ERROR",
    "FUTURE",
    "DRAIN",
    "DRAINED",
    "DRAINING",
    "FAIL",
    "FAILING",
    "COMPLETING",
    "MAINTENANCE",
    "RESERVED",
    "PLANNED",
    "BLOCKED",
    "NOT_RESPONDING",
    "CLOUD",
    "EXTERNAL",
    "DYNAMIC_NORM",
    "DYNAMIC_FUTURE",
    "INVALID_REG",
    "PERFCTRS",
    "POWER_DOWN",
    "POWER_UP",
    "POWERED_DOWN",
    "POWERING_DOWN",
    "POWERING_UP",
    "REBOOT_REQUESTED",
    "REBOOT_ISSUED",
    "UNDRAIN",
    "RESUME",
];

/// The meaning of suffixes after a state (`sinfo(1)`, NODE STATE CODES).
const STATE_SUFFIXES: &[(char, &str)] = &[
    ('*', "NOT_RESPONDING"),
    ('~', "POWERED_DOWN"),
    ('#', "POWERING_UP"),
    ('!', "POWER_DOWN"),
    ('%', "POWERING_DOWN"),
    ('$', "MAINTENANCE"),
    ('@', "REBOOT_REQUESTED"),
    ('^', "REBOOT_ISSUED"),
    ('-', "PLANNED"),
];

/// The meaning of a plus sign after a complete state.
const COMPLETING: &str = "COMPLETING";

/// The flags of a state such as `IDLE+DRAIN`, `drng*` or `idle+not_responding`.
pub(super) fn split_state(state: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    // Sanitized, because flags are displayed.
    let state = sanitize_text(state);
    let is_combined = state.contains('+');
    for part in state.split('+') {
        let (word, marks) = split_suffixes(part.trim());
        // In a combination `drain` is a flag, alone it is the complete state.
        let is_flag = is_combined && word.eq_ignore_ascii_case("drain");
        let known = SHORT_FORMS.iter().find(|(form, _)| form.eq_ignore_ascii_case(word));
        let known = known.filter(|_| !is_flag);
        let long = known.map_or_else(|| word.to_ascii_uppercase(), |(_, long)| (*long).to_owned());
        for word in std::iter::once(long).chain(marks) {
            if !word.is_empty() && !words.contains(&word) {
                words.push(word);
            }
        }
    }
    words
}

/// The flags of a state in a column of `sinfo`, where a plus sign at the end means that jobs are
/// completing.
pub(super) fn split_sinfo_state(state: &str) -> Vec<String> {
    let (state, is_ending) = strip_completing(state);
    let mut words = split_state(state);
    if is_ending && !words.is_empty() && !words.iter().any(|word| word == COMPLETING) {
        words.push(COMPLETING.to_owned());
    }
    words
}

/// A state without the plus sign of `alloc+`: jobs run there and others are completing.
fn strip_completing(state: &str) -> (&str, bool) {
    state.strip_suffix('+').map_or((state, false), |state| (state, true))
}

/// Whether every flag of a state is known to Slurm: this identifies a column of states.
pub(super) fn is_state(state: &str) -> bool {
    let is_word = |part: &str| {
        let (word, _) = split_suffixes(part);
        SHORT_FORMS.iter().any(|(form, _)| form.eq_ignore_ascii_case(word))
            || LONG_FORMS.iter().any(|long| long.eq_ignore_ascii_case(word))
    };
    let (state, _) = strip_completing(state);
    !state.is_empty() && state.split('+').all(is_word)
}

/// A state and the flags of its suffixes.
fn split_suffixes(part: &str) -> (&str, Vec<String>) {
    let word = part.trim_end_matches(|c| STATE_SUFFIXES.iter().any(|(mark, _)| *mark == c));
    let meaning =
        |c| STATE_SUFFIXES.iter().find(|(mark, _)| *mark == c).map(|(_, word)| (*word).to_owned());
    (word, part[word.len()..].chars().filter_map(meaning).collect())
}

/// Whether a workload runs on a node in this state; `None` if unknown.
pub(super) fn is_busy(words: &[String]) -> Option<bool> {
    let has = |any: &[&str]| words.iter().any(|word| any.contains(&word.as_str()));
    if has(&["ALLOCATED", "MIXED", "COMPLETING", "DRAINING"]) {
        Some(true)
    } else if has(&["IDLE", "DOWN", "DRAINED", "FUTURE"]) {
        Some(false)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_of_a_state_give_the_same_flags() {
        assert_eq!(split_state("IDLE+DRAIN"), ["IDLE", "DRAIN"]);
        assert_eq!(split_state("idle+not_responding"), ["IDLE", "NOT_RESPONDING"]);
        assert_eq!(split_state("idle*"), ["IDLE", "NOT_RESPONDING"]);
        assert_eq!(split_state("DOWN*+DRAIN"), ["DOWN", "NOT_RESPONDING", "DRAIN"]);
        assert_eq!(split_state("drng@"), ["DRAINING", "REBOOT_REQUESTED"]);
        assert_eq!(split_state("boot^"), ["REBOOT_ISSUED"]);
        assert_eq!(split_state("mix-"), ["MIXED", "PLANNED"]);
        assert_eq!(split_state("BRAND_NEW"), ["BRAND_NEW"]);
        assert!(split_state("").is_empty());
        assert_eq!(split_state("DOWN*\u{8c} x\u{1b}[2J"), ["DOWN* X[2J"]);
    }

    #[test]
    fn a_plus_after_a_state_has_a_meaning_in_tables_only() {
        assert_eq!(split_sinfo_state("alloc+"), ["ALLOCATED", "COMPLETING"]);
        assert_eq!(split_sinfo_state("idle+drain"), ["IDLE", "DRAIN"]);
        assert!(split_sinfo_state("+").is_empty());
        // This distinguishes JSON's single flags from short forms.
        assert_eq!(split_state("DRAIN+"), ["DRAIN"]);
    }

    #[test]
    fn a_state_is_distinguished_from_other_words() {
        for state in
            ["idle", "alloc", "mixed+drain", "down*", "drained*", "plnd", "inval", "alloc+"]
        {
            assert!(is_state(state), "{state}");
        }
        for other in ["", "main", "infinite", "up", "node0001", "partition1", "none", "2", "+"] {
            assert!(!is_state(other), "{other}");
        }
    }

    #[test]
    fn a_drained_node_is_only_free_once_nothing_runs() {
        let busy = |state: &str| is_busy(&split_state(state));
        assert_eq!(busy("MIXED+DRAIN"), Some(true));
        assert_eq!(busy("IDLE+DRAIN+COMPLETING"), Some(true));
        assert_eq!(busy("IDLE+DRAIN"), Some(false));
        assert_eq!(busy("drng"), Some(true));
        assert_eq!(busy("UNKNOWN+DRAIN"), None);
        assert_eq!(busy("SOMETHING"), None);
    }
}
