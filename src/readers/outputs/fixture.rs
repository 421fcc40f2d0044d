//! Shared helpers for parser tests: inspecting results, and damage that copying, killing and full
//! disks cause in an output.

use proptest::prelude::*;

use model::measurement::{Measurement, MeasurementMatrix};
use model::parse_output::{OutputProblemKind, ParseOutput};

/// All measurements of a tool that only measures matrices.
pub(in crate::outputs) fn matrices(parsed: &ParseOutput) -> Vec<&MeasurementMatrix> {
    fn matrix(measurement: &Measurement) -> &MeasurementMatrix {
        match measurement {
            Measurement::Matrix(matrix) => matrix,
            other => panic!("no matrix: {other:?}"),
        }
    }
    parsed.measurements.iter().map(matrix).collect()
}

/// The kinds of problems, in order.
pub(in crate::outputs) fn problem_kinds(parsed: &ParseOutput) -> Vec<OutputProblemKind> {
    parsed.problems.iter().map(|problem| problem.kind).collect()
}

/// A piece to cut out, its position, and the replacement.
pub(in crate::outputs) type TextDamage = (usize, usize, Vec<u8>);

pub(in crate::outputs) fn any_damage() -> impl Strategy<Value = TextDamage> {
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

pub(in crate::outputs) fn apply_damage(text: &str, (at, length, put): &TextDamage) -> Vec<u8> {
    let bytes = text.as_bytes();
    let at = at % (bytes.len() + 1);
    let end = (at + length).min(bytes.len());
    [&bytes[..at], put.as_slice(), &bytes[end..]].concat()
}

/// `text` without these lines, and with these bytes replaced.
pub(in crate::outputs) fn scar_lines(text: &str, lost: &[usize], at: &[(usize, u8)]) -> Vec<u8> {
    let kept = text.lines().enumerate().filter(|(line, _)| !lost.contains(line));
    let mut bytes: Vec<u8> = kept.flat_map(|(_, line)| [line.as_bytes(), b"\n"].concat()).collect();
    for (place, byte) in at {
        if let Some(target) = bytes.get_mut(*place) {
            *target = *byte;
        }
    }
    bytes
}
