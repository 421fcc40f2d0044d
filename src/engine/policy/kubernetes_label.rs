//! Conversion of texts to Kubernetes values: labels and taints, and reasons of conditions.
//!
//! Text in, text out. A text that must be changed to be legal stays distinct from every other
//! text's value, because nodes are distinguished by it.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// Longest value of a label or taint (`k8s.io/apimachinery`,
/// `LabelValueMaxLength`).
pub const LONGEST: usize = 63;

/// Longest condition reason that is written: a class is far shorter.
const LONGEST_REASON: usize = 64;

/// Digits of the digest appended to a changed text.
const DIGEST: usize = 8;

/// A text as a label's value: unchanged if it is legal, else with `-` for illegal characters
/// and a digest of the whole text at the end, so that two domains never share a value.
pub fn label_value(text: &str) -> String {
    if is_legal(text) {
        return text.to_owned();
    }
    let kept: String = text
        .chars()
        .map(|c| if is_legal_inside(c) { c } else { '-' })
        .skip_while(|c| !c.is_ascii_alphanumeric())
        .take(LONGEST - DIGEST - 1)
        .collect();
    let digest = digest(text);
    if kept.is_empty() { digest } else { format!("{kept}-{digest}") }
}

pub(super) fn digest(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().take(DIGEST / 2).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Whether a text is valid as a label's value. Kubernetes accepts an empty one, but it carries no
/// information, so it is refused here.
fn is_legal(text: &str) -> bool {
    let at_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= LONGEST
        && at_end(text.chars().next())
        && at_end(text.chars().next_back())
        && text.chars().all(is_legal_inside)
}

fn is_legal_inside(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

/// A class of findings as a condition's reason: `nvlink-low` becomes `NvlinkLow`.
pub fn condition_reason(class: &str) -> String {
    let words = class.split(|c: char| !c.is_ascii_alphanumeric());
    let mut reason = String::new();
    for word in words {
        let (first, rest) = word.split_at(word.len().min(1));
        reason.push_str(&first.to_ascii_uppercase());
        reason.push_str(rest);
    }
    reason.truncate(LONGEST_REASON);
    if reason.bytes().next().is_some_and(|first| first.is_ascii_alphabetic()) {
        reason
    } else {
        format!("Class{reason}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn legal_values_stay_and_changed_ones_stay_distinct() {
        for text in ["block01", "a", "NVL72.b_1-c", &"x".repeat(63)] {
            assert_eq!(label_value(text), text);
        }
        assert_eq!(label_value("rack 7/b"), "rack-7-b-f3e41320");
        let alike = ["rack 7", "rack/7", "rack-7-", "-rack-7", "räck-7", "rack.7."];
        let folded: std::collections::BTreeSet<String> =
            alike.iter().map(|text| label_value(text)).collect();
        assert_eq!(folded.len(), alike.len(), "{folded:?}");
        assert_ne!(label_value(&"x".repeat(64)), label_value(&"x".repeat(65)));
    }

    #[test]
    fn a_class_becomes_a_word_for_programs() {
        for (class, word) in [
            ("nvlink-low", "NvlinkLow"),
            ("gpu-missing", "GpuMissing"),
            ("a b/c", "ABC"),
            ("", "Class"),
            ("4-way", "Class4Way"),
        ] {
            assert_eq!(condition_reason(class), word);
        }
    }

    proptest! {
        #[test]
        fn any_text_becomes_a_legal_value_and_a_legal_reason(text in any::<String>()) {
            let value = label_value(&text);
            prop_assert!(is_legal(&value) && !value.is_empty(), "{value:?}");
            prop_assert_eq!(label_value(&value), value.clone());
            let reason = condition_reason(&text);
            prop_assert!(reason.chars().all(|c| c.is_ascii_alphanumeric()), "{reason:?}");
            prop_assert!(reason.starts_with(|c: char| c.is_ascii_alphabetic()));
            prop_assert!(reason.len() <= LONGEST_REASON + "Class".len());
        }
    }
}
