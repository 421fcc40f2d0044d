//! Properties: no input crashes the reader, and printed numbers are read back unchanged.

use proptest::prelude::*;

use super::json::{SECRET, json};
use super::render::{NcclTestsRelease, RELEASES, RenderedNcclOutput, RenderedRowHalf, fit, half};
use super::{read, series};
use crate::outputs;
use crate::outputs::nccl;
use model::measurement::SeriesPoint;
use model::parse_output::OutputProblemKind;

/// Damage to apply to a text.
fn damage() -> impl Strategy<Value = (usize, usize, String)> {
    let garbage = prop_oneof![
        Just(String::new()),
        "[\\x00-\\x7f]{0,8}",
        Just("n1:1:2 [0] NCCL INFO via NET/IB/0\n".to_owned()),
        Just("NaN".to_owned()),
        Just("\u{fffd}-{]".to_owned()),
        Just("\n".to_owned()),
    ];
    (any::<prop::sample::Index>(), 0usize..200, garbage)
        .prop_map(|(at, length, text)| (at.index(usize::MAX), length, text))
}

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let input = outputs::text::decode(&bytes);
        nccl::parse(&outputs::ParserInput::new(&input));
    }

    #[test]
    fn damaged_outputs_are_survived(
        which in 0usize..5,
        damages in prop::collection::vec(damage(), 1..6),
    ) {
        let mut text = match RELEASES.get(which) {
            Some(release) => RenderedNcclOutput::new(*release).text(),
            None => json(3),
        };
        for (at, length, garbage) in damages {
            let floor = |mut at: usize| {
                while !text.is_char_boundary(at) {
                    at -= 1;
                }
                at
            };
            let start = floor(at % (text.len() + 1));
            let end = floor((start + length).min(text.len())).max(start);
            text.replace_range(start..end, &garbage);
        }
        let input = outputs::text::decode(text.as_bytes());
        let parsed = nccl::parse(&outputs::ParserInput::new(&input));
        let debug_text = format!("{parsed:?}");
        prop_assert!(!debug_text.contains(SECRET));
    }

    #[test]
    fn rendered_rows_are_read_back(
        which in 0usize..4,
        rows in prop::collection::vec(
            (1u64..1 << 30, 1u32..40_000_000, 1u32..40_000_000, prop::option::of(0u32..9000)),
            1..12,
        ),
    ) {
        let release = RELEASES[which];
        let rows: Vec<_> = rows
            .into_iter()
            .map(|(elements, out, within, wrong)| {
                let bytes = elements * 4;
                let make = |hundredths: u32| RenderedRowHalf {
                    wrong,
                    ..half(bytes, f64::from(hundredths) / 100.0, 8)
                };
                (bytes, [make(out), make(within)])
            })
            .collect();
        let output = RenderedNcclOutput { release, rows };
        let parsed = read(&(output.table() + &output.footer()));
        let have: Vec<&SeriesPoint> = series(&parsed, 0).points.iter().collect();
        let want = output.rows.iter().flat_map(|(bytes, halves)| {
            halves.iter().map(move |half| (*bytes, half))
        });
        prop_assert_eq!(have.len(), output.rows.len() * 2);
        for (point, (bytes, half)) in have.into_iter().zip(want) {
            let printed = |value: f64, width| fit(value, width).trim().parse::<f64>().ok();
            prop_assert_eq!(point.bytes, bytes);
            prop_assert_eq!(point.time_us, printed(half.time, 7));
            prop_assert_eq!(point.algbw, printed(half.algbw, 6));
            prop_assert_eq!(point.busbw, printed(half.busbw, 6));
            let wrong = half.wrong.filter(|_| release != NcclTestsRelease::Old).map(f64::from);
            prop_assert_eq!(point.wrong, wrong);
        }
        prop_assert!(!parsed.has_problem(OutputProblemKind::Inconsistent), "{:?}", parsed.problems);
    }
}
