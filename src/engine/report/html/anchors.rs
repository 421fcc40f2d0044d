//! Names for places on the page that stay the same from run to run, so that a
//! mailed link still points at the same part.

use std::collections::BTreeMap;

/// The longest name of a place.
const LONGEST: usize = 60;

/// Names given so far.
#[derive(Debug, Default)]
pub(super) struct HtmlAnchors {
    taken: BTreeMap<String, usize>,
}

impl HtmlAnchors {
    /// A name of letters, digits, `-`, `.` and `_` that nothing else has.
    pub(super) fn unique_name(&mut self, kind: &str, text: &str) -> String {
        let fit = |c: char| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '-' };
        let wanted: String = text.chars().take(LONGEST).map(fit).collect();
        let wanted = format!("{kind}-{wanted}");
        let mut name = wanted.clone();
        let mut count = self.taken.get(&wanted).copied().unwrap_or(0);
        while self.taken.contains_key(&name) {
            count += 1;
            name = format!("{wanted}-{count}");
        }
        self.taken.insert(wanted, count);
        self.taken.entry(name.clone()).or_insert(0);
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_places_share_a_name_and_no_text_gets_into_it() {
        let mut anchors = HtmlAnchors::default();
        let names = ["a b", "a-b", "a\"b", "a-b-1", "a-b"].map(|t| anchors.unique_name("node", t));
        assert_eq!(names, ["node-a-b", "node-a-b-1", "node-a-b-2", "node-a-b-1-1", "node-a-b-3"]);
        assert_eq!(anchors.unique_name("node", "<x>&#"), "node--x---");
    }
}
