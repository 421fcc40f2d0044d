//! Huge numbers in the outputs of tools, read and judged: for any output, the judge returns a
//! verdict and no count overflows.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use engine::judge;
use engine::thresholds::builtin;
use model::tool_recording::{RecordingScope, ToolRecording};
use readers::claims::claims_file;
use readers::outputs;

use super::corpus::corpus;

/// Impossible counts, and the largest of each width.
const HUGE: [u64; 6] = [1_023, 300_000, 0x7fff_ffff, u32::MAX as u64, i64::MAX as u64, u64::MAX];

/// The runs of digits of a text, one for each different line prefix.
pub(crate) fn numbers(text: &str) -> Vec<(usize, usize)> {
    let mut kinds: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let (bytes, mut at) = (text.as_bytes(), 0);
    while at < bytes.len() {
        if !bytes[at].is_ascii_digit() {
            at += 1;
            continue;
        }
        let end = bytes[at..].iter().position(|it| !it.is_ascii_digit());
        let end = end.map_or(bytes.len(), |it| at + it);
        let line = text[..at].rfind('\n').map_or(0, |it| it + 1);
        let before = text[line..at].chars().filter(|it| !it.is_ascii_digit()).collect();
        kinds.entry(before).or_insert((at, end));
        at = end;
    }
    kinds.into_values().collect()
}

#[test]
fn huge_numbers_of_tools_are_judged_and_never_overflow() {
    let claims = "[[domain]]\nname = \"rack\"\nnodes = \"tray[07-08]\"\nplatform = \"gb200-nvl72\"\ngpus_per_node = 2\n\
        [[domain]]\nname = \"box1\"\nnodes = \"box1\"\nplatform = \"hgx-h100\"\ngpus_per_node = 3\n";
    let claims = claims_file::parse("c", claims).expect("good claims");
    let catalogue = builtin::builtin_catalogue();
    let scopes = [
        RecordingScope::Node("box1".into()),
        RecordingScope::Domain("rack".into()),
        RecordingScope::Pair("tray07".into(), "tray08".into()),
    ];
    let (mut tried, mut broke) = (0, BTreeMap::new());
    for texts in corpus().of_tools() {
        // Texts of one tool are alike: a few of each suffice.
        for text in texts.iter().step_by(texts.len().div_ceil(3).max(1)) {
            let Ok(text) = std::str::from_utf8(text) else { continue };
            for (number, (from, to)) in numbers(text).into_iter().enumerate() {
                let huge = HUGE[(number + tried) % HUGE.len()];
                let changed = format!("{}{huge}{}", &text[..from], &text[to..]);
                for scope in &scopes {
                    let judged = catch_unwind(AssertUnwindSafe(|| {
                        let parsed = outputs::parse_streams(changed.as_bytes(), changed.as_bytes());
                        let recordings = [ToolRecording::new(scope.clone(), "f", parsed)];
                        judge::judge_without_history(&judge::JudgeInput {
                            claims: &claims,
                            recordings: &recordings,
                            catalogue,
                            thresholds_digest: "d",
                            platform: None,
                            cells: true,
                            sampled: false,
                        })
                    }));
                    tried += 1;
                    if judged.is_err() {
                        let line = text[..from].rfind('\n').map_or(0, |it| it + 1);
                        broke.entry(text[line..from].to_owned()).or_insert(huge);
                    }
                }
            }
        }
    }
    assert!(broke.is_empty(), "{tried} tried; numbers behind these break the judge: {broke:#?}");
    assert!(1_000 < tried, "only {tried}");
}
