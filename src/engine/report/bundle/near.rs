//! Names similar to an unknown name.

use model::id::NodeName;
use model::text::edit_distance;

/// Most names in a suggestion.
const MOST: usize = 5;

/// The names that differ least from this one, the nearest first.
pub fn nearest_names<'a>(
    name: &str,
    known: impl IntoIterator<Item = &'a NodeName>,
) -> Vec<&'a NodeName> {
    let mut all: Vec<(usize, &NodeName)> =
        known.into_iter().map(|it| (edit_distance(name, it.as_str()), it)).collect();
    all.sort();
    all.into_iter().take(MOST).map(|(_, node)| node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_finds_its_node() {
        let known: Vec<NodeName> = ["node0001", "node0010", "gpu7"].map(NodeName::from).to_vec();
        assert_eq!(nearest_names("node001", &known)[0].as_str(), "node0001");
        assert_eq!(nearest_names("gpu-7", &known)[0].as_str(), "gpu7");
    }
}
