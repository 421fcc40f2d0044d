//! Damage for tests: what copying, killing and full disks do to an output.

use proptest::prelude::*;

/// A piece to cut out, where, and what to put there instead.
pub(in crate::measure) type Damage = (usize, usize, Vec<u8>);

/// Any damage.
pub(in crate::measure) fn any_damage() -> impl Strategy<Value = Damage> {
    let put = prop_oneof![
        Just(Vec::new()),
        proptest::collection::vec(any::<u8>(), 1..6),
        prop_oneof![
            Just("\n"),
            Just(" : "),
            Just("..."),
            Just("\u{1b}[4m"),
            Just("{"),
            Just("GPU ")
        ]
        .prop_map(|s| s.as_bytes().to_vec()),
    ];
    (any::<usize>(), 0usize..400, put)
}

/// `text` with that damage.
pub(in crate::measure) fn damaged(text: &str, (at, length, put): &Damage) -> Vec<u8> {
    let bytes = text.as_bytes();
    let at = at % (bytes.len() + 1);
    let end = (at + length).min(bytes.len());
    [&bytes[..at], put.as_slice(), &bytes[end..]].concat()
}
