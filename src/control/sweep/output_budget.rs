//! How much of the tools' output the run folder keeps: all output that a parser reads, head and
//! tail of the rest, within a share for each set of nodes, a sum for the run, and the free space of
//! the file system.
//!
//! A node that floods uses up its own share: the outputs of others are kept.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::step_outputs;
use super::worker::OrderOutcome;
use engine::plan::PlanStep;
use model::id::NodeName;
use model::raw_result::RawResult;
use model::tool_recording::ToolRecording;
use node::exec::CapturedStream;

/// Bytes at the head and at the tail of an output that no parser reads.
const EXCERPT_BYTES: usize = 64 << 10;

/// An output that exceeds both by less than this is kept whole: the line between them takes some
/// room too.
const EXCERPT_SLACK_BYTES: usize = 4 << 10;

/// Bytes for each node of a step, shared by all steps of the same nodes. The outputs of a node
/// total less than a megabyte, those of a rack some ten.
const STEP_NODE_BYTES: u64 = 32 << 20;

/// Bytes for each node of a run, and for a run of few nodes. One node takes part in as many pairs
/// as its domain has nodes: with all their shares it uses less than this.
const RUN_NODE_BYTES: u64 = 128 << 20;
const RUN_BYTES: u64 = 4 << 30;

/// Free bytes that outputs leave on the file system: the journal, results and reports need some
/// megabytes. At most a twentieth of the file system.
const FREE_SPACE_RESERVE: u64 = 512 << 20;

/// Bytes of a file system: available to this process, and in total.
#[derive(Clone, Copy, Debug)]
struct DiskSpace {
    free: u64,
    total: u64,
}

impl DiskSpace {
    fn from_folder(folder: &Path) -> Option<Self> {
        let stats = rustix::fs::statvfs(folder).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(stats.f_frsize);
        Some(Self { free: bytes(stats.f_bavail), total: bytes(stats.f_blocks) })
    }

    /// The bytes that outputs may still take.
    fn available_for_outputs(self) -> u64 {
        self.free.saturating_sub(FREE_SPACE_RESERVE.min(self.total / 20))
    }
}

/// The space of one run.
#[derive(Debug)]
pub(super) struct OutputBudget {
    folder: PathBuf,
    /// Bytes for each node of a step.
    share: u64,
    /// Bytes for the run.
    run: u64,
    used: u64,
    shares: BTreeMap<Vec<NodeName>, u64>,
    /// Whether the full file system is reported.
    is_full_reported: bool,
}

impl OutputBudget {
    /// The space in this folder for a run of so many nodes.
    pub(super) fn new(folder: &Path, nodes: usize) -> Self {
        let run = RUN_BYTES.max(RUN_NODE_BYTES.saturating_mul(nodes as u64));
        Self::with_limits(folder, STEP_NODE_BYTES, run)
    }

    fn with_limits(folder: &Path, share: u64, run: u64) -> Self {
        let folder = folder.to_owned();
        Self { folder, share, run, used: 0, shares: BTreeMap::new(), is_full_reported: false }
    }

    /// Reads an output, and removes the part that is not kept: the parser reads exactly the content
    /// of the folder. Returns a reason once the file system is nearly full.
    pub(super) fn read_output(
        &mut self,
        step: &PlanStep,
        result: &mut RawResult,
        outcome: &mut OrderOutcome,
    ) -> (Option<ToolRecording>, Option<String>) {
        let space = DiskSpace::from_folder(&self.folder);
        self.read_output_within(space, step, result, outcome)
    }

    fn read_output_within(
        &mut self,
        space: Option<DiskSpace>,
        step: &PlanStep,
        result: &mut RawResult,
        outcome: &mut OrderOutcome,
    ) -> (Option<ToolRecording>, Option<String>) {
        // A stored run has dropped its excess already.
        let before = [&outcome.stdout, &outcome.stderr].map(|it| it.dropped);
        let read = |result: &RawResult, outcome: &OrderOutcome| {
            step_outputs::read_output(step, result, &outcome.stdout.bytes, &outcome.stderr.bytes)
        };
        let mut cut = false;
        if EXCERPT_BYTES * 2 + EXCERPT_SLACK_BYTES < outcome.stderr.bytes.len() {
            let troubles = |stderr: &[u8]| readers::outputs::parse_streams(&[], stderr).problems;
            let (all, short) =
                (&outcome.stderr.bytes, head_and_tail(&outcome.stderr.bytes, EXCERPT_BYTES));
            // Errors between head and tail would be lost: then all of it stays.
            cut = troubles(all) == troubles(&short)
                && shorten_stream(&mut outcome.stderr, EXCERPT_BYTES);
        }
        let mut recording = read(result, outcome);
        let is_read = recording.as_ref().is_some_and(|it| it.parsed.tool.is_some());
        cut |= !is_read && shorten_stream(&mut outcome.stdout, EXCERPT_BYTES);
        let mut disk_full = None;
        let size = (outcome.stdout.bytes.len() + outcome.stderr.bytes.len()) as u64;
        let mut account = step.nodes.clone();
        account.sort();
        let share = self.share.saturating_mul(account.len().max(1) as u64);
        let used = self.shares.entry(account).or_default();
        let run = self.run;
        let why = if space.is_some_and(|space| space.available_for_outputs() < size) {
            Some(format!("the file system of {} is nearly full", self.folder.display()))
        } else if share < used.saturating_add(size) {
            Some(format!("its nodes have printed more than the {} MiB that are kept", share >> 20))
        } else if run < self.used.saturating_add(size) {
            Some(format!("the run has printed more than the {} MiB that are kept", run >> 20))
        } else {
            *used += size;
            self.used += size;
            None
        };
        if let Some(why) = why {
            cut |= shorten_stream(&mut outcome.stdout, 0) | shorten_stream(&mut outcome.stderr, 0);
            if !self.is_full_reported
                && space.is_some_and(|space| space.available_for_outputs() < size)
            {
                self.is_full_reported = true;
                disk_full = Some(why.clone());
            }
            result.not_kept = Some(why);
        }
        if cut {
            let more = |now: u64, before: u64| now.saturating_sub(before);
            let [out, err] = before;
            result.stdout_dropped =
                result.stdout_dropped.saturating_add(more(outcome.stdout.dropped, out));
            result.stderr_dropped =
                result.stderr_dropped.saturating_add(more(outcome.stderr.dropped, err));
            recording = read(result, outcome);
        }
        (recording, disk_full)
    }
}

/// Keeps the head and tail of an output; false if it is short.
fn shorten_stream(stream: &mut CapturedStream, end: usize) -> bool {
    let all = stream.bytes.len();
    let slack = if end == 0 { 0 } else { EXCERPT_SLACK_BYTES };
    if all <= 2 * end + slack {
        return false;
    }
    stream.bytes = head_and_tail(&stream.bytes, end);
    stream.dropped = stream.dropped.saturating_add((all - 2 * end) as u64);
    true
}

/// Head and tail, and between them a line with the size and digest of the whole.
fn head_and_tail(bytes: &[u8], end: usize) -> Vec<u8> {
    let digest = Sha256::digest(bytes);
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let notice = format!(
        "\n[fabricgate: {} of {} bytes are left out here; sha256 of all {digest}]\n",
        bytes.len() - 2 * end,
        bytes.len()
    );
    [&bytes[..end], notice.as_bytes(), &bytes[bytes.len() - end..]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::fixture;
    use crate::sweep::fixture::EXITED_WELL;

    const LARGE: DiskSpace = DiskSpace { free: 1 << 50, total: 1 << 50 };

    fn tool_outcome(stdout: Vec<u8>, stderr: Vec<u8>) -> OrderOutcome {
        OrderOutcome {
            ending: EXITED_WELL,
            stdout: CapturedStream { bytes: stdout, dropped: 0 },
            stderr: CapturedStream { bytes: stderr, dropped: 0 },
            ..OrderOutcome::not_started(String::new())
        }
    }

    const KIB: u64 = 1 << 10;

    fn budget(share: u64, run: u64) -> OutputBudget {
        OutputBudget::with_limits(Path::new("/nowhere"), share, run)
    }

    fn large_budget() -> OutputBudget {
        OutputBudget::new(Path::new("/nowhere"), 18)
    }

    /// A table that a parser reads, followed by a flood of lines.
    fn table(flood: usize) -> Vec<u8> {
        let begin = "nvbandwidth Version: v0.8\n\nRunning host_to_device_memcpy_ce.\n\
            memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n           0\n 0     55.50\n\n\
            SUM host_to_device_memcpy_ce 55.50\n\n";
        [begin.as_bytes(), "noise\n".repeat(flood / 6).as_bytes()].concat()
    }

    #[test]
    fn unparsed_output_keeps_head_tail_size_and_digest() {
        let flood = [b"head ".as_slice(), &vec![b'x'; 3 << 20], b" tail"].concat();
        let mut outcome = tool_outcome(flood.clone(), flood.clone());
        let mut result = fixture::result(1, 0, EXITED_WELL);
        let (recording, disk_full) = large_budget().read_output_within(
            Some(LARGE),
            &fixture::step(1),
            &mut result,
            &mut outcome,
        );
        assert_eq!((result.not_kept.clone(), disk_full), (None, None));
        for stream in [&outcome.stdout, &outcome.stderr] {
            assert!(stream.bytes.len() < 2 * EXCERPT_BYTES + 200);
            assert_eq!(stream.dropped, (flood.len() - 2 * EXCERPT_BYTES) as u64);
            let text = String::from_utf8_lossy(&stream.bytes);
            assert!(text.starts_with("head x") && text.ends_with("x tail"));
            assert!(text.contains(&format!("of {} bytes are left out", flood.len())));
        }
        assert!(result.gap_reason().is_some_and(|why| why.contains("beyond the size limit")));
        assert!(!recording.expect("read").parsed.complete);
        // A stored run that is judged again is not cut again.
        let (kept, dropped) = (outcome.stdout.bytes.clone(), result.stdout_dropped);
        large_budget().read_output_within(
            Some(LARGE),
            &fixture::step(1),
            &mut result,
            &mut outcome,
        );
        assert_eq!((outcome.stdout.bytes, result.stdout_dropped), (kept, dropped));
    }

    #[test]
    fn errors_between_head_and_tail_of_standard_error_stay_readable() {
        let noise = "noise\n".repeat(100_000);
        let error = "node1: Test CUDA failure all_reduce.cu:10 'an illegal memory access'\n";
        let stderr = [noise.as_str(), error, noise.as_str()].concat();
        let problems = |stderr: &[u8]| readers::outputs::parse_streams(&[], stderr).problems;
        let before = problems(stderr.as_bytes());
        let mut outcome = tool_outcome(Vec::new(), stderr.into_bytes());
        let mut result = fixture::result(1, 0, EXITED_WELL);
        large_budget().read_output_within(
            Some(LARGE),
            &fixture::step(1),
            &mut result,
            &mut outcome,
        );
        assert_eq!(problems(&outcome.stderr.bytes), before);
    }

    fn step_on_node(node: &str) -> PlanStep {
        let mut step = fixture::step(1);
        step.nodes = vec![node.into()];
        step
    }

    #[test]
    fn a_flooding_node_uses_up_only_its_own_share() {
        let mut room = budget(64 * KIB, 1 << 40);
        let (mut kept, mut refused) = (0, 0);
        for _ in 0..20 {
            let mut outcome = tool_outcome(table(16 << 10), Vec::new());
            let mut result = fixture::result(1, 0, EXITED_WELL);
            let (recording, _) = room.read_output_within(
                Some(LARGE),
                &step_on_node("n1"),
                &mut result,
                &mut outcome,
            );
            kept += outcome.stdout.bytes.len() as u64;
            if result.not_kept.is_some() {
                refused += 1;
                let is_read = recording.is_some_and(|it| it.parsed.tool.is_some());
                assert!(!is_read && result.gap_reason().is_some(), "{result:?}");
                assert!(outcome.stdout.bytes.len() < 200);
            }
        }
        assert!(0 < refused && kept <= 64 * KIB + 20 * 200, "{kept}");
        let mut outcome = tool_outcome(table(16 << 10), Vec::new());
        let mut result = fixture::result(1, 0, EXITED_WELL);
        let (recording, _) =
            room.read_output_within(Some(LARGE), &step_on_node("n2"), &mut result, &mut outcome);
        assert_eq!(result.not_kept, None);
        assert!(recording.expect("read").parsed.tool.is_some());
    }

    #[test]
    fn a_run_keeps_at_most_its_sum_which_one_node_cannot_use_up() {
        let mut all = budget(32 * KIB, 256 * KIB);
        let (mut kept, mut refused) = (0, 0);
        for number in 0..40 {
            let mut outcome = tool_outcome(table(16 << 10), Vec::new());
            let mut result = fixture::result(1, 0, EXITED_WELL);
            let node = format!("n{number}");
            all.read_output_within(Some(LARGE), &step_on_node(&node), &mut result, &mut outcome);
            kept += outcome.stdout.bytes.len() as u64;
            refused += u32::from(result.not_kept.is_some());
        }
        assert!(0 < refused && kept <= 256 * KIB + 40 * 200, "{kept}");
        // Its own tests, those with each other node of a domain of 18, and those of all of them.
        let one = STEP_NODE_BYTES + 17 * 2 * STEP_NODE_BYTES + 18 * STEP_NODE_BYTES;
        assert!(one < RUN_BYTES, "{one}");
    }

    #[test]
    fn on_a_nearly_full_file_system_nothing_is_kept_and_one_message_is_printed() {
        let mut room = large_budget();
        for (free, all, kept) in [
            (FREE_SPACE_RESERVE + (1 << 20), 1 << 40, true),
            (FREE_SPACE_RESERVE, 1 << 40, false),
            (0, 1 << 40, false),
            // A small file system: a twentieth of it stays free.
            (2 << 20, 20 << 20, true),
            (1 << 20, 20 << 20, false),
        ] {
            let mut outcome = tool_outcome(table(1_000), Vec::new());
            let mut result = fixture::result(1, 0, EXITED_WELL);
            let space = Some(DiskSpace { free, total: all });
            let reported = room.is_full_reported;
            let (recording, disk_full) =
                room.read_output_within(space, &fixture::step(1), &mut result, &mut outcome);
            assert_eq!(result.not_kept.is_none(), kept, "{free} of {all}");
            assert_eq!(disk_full.is_some(), !kept && !reported, "{free} of {all}");
            let is_read = recording.is_some_and(|it| it.parsed.tool.is_some());
            assert_eq!(is_read, kept, "{free} of {all}: a dropped output is not read");
            let unknown = result.gap_reason().is_some_and(|why| why.contains("nearly full"));
            assert_eq!(unknown, !kept, "{free} of {all}");
        }
    }
}
