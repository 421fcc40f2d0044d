//! Names that look like one that is not there.

use crate::model::id::NodeName;

/// Names that are told.
const MOST: usize = 5;

/// The names that differ least from this one, the nearest first.
pub fn near<'a>(name: &str, known: impl IntoIterator<Item = &'a NodeName>) -> Vec<&'a NodeName> {
    let mut all: Vec<(usize, &NodeName)> =
        known.into_iter().map(|it| (distance(name, it.as_str()), it)).collect();
    all.sort();
    all.into_iter().take(MOST).map(|(_, node)| node).collect()
}

/// How many characters have to be changed, added or taken away (Levenshtein 1966).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut before = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let other = before + usize::from(x != *y);
            before = row[j + 1];
            row[j + 1] = other.min(before + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_finds_its_node() {
        let known: Vec<NodeName> = ["node0001", "node0010", "gpu7"].map(NodeName::from).to_vec();
        assert_eq!(near("node001", &known)[0].as_str(), "node0001");
        assert_eq!(near("gpu-7", &known)[0].as_str(), "gpu7");
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
