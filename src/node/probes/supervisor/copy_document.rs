//! Builds one document from the output of a copy probe's processes.
//!
//! Pure. A number that belongs to no test is omitted, and reported as a problem.

use std::collections::BTreeMap;

use super::SupervisorOutput;
use crate::probes::protocol::{ProbeMatrixCell, ProbeMatrixShape, ProbeMessage};
use crate::probes::task::CopyTask;
use model::copy::{COPY_FORMAT, CopyDocument, CopyTest};
use model::parse_output::OutputProblemKind;
use model::probe_problem_class::ProbeProblemClass;
use model::probe_report::ProbeProblem;

/// Builds the document.
pub fn build_document(task: &CopyTask, supervised: &SupervisorOutput) -> CopyDocument {
    let common = supervised.common_report();
    let mut matrices = CopyMatrices::new(task.readings);
    for message in supervised.messages() {
        match message {
            ProbeMessage::Test(shape) => matrices.begin_test(shape),
            ProbeMessage::Cell(cell) => matrices.add_cell(cell),
            _ => {}
        }
    }
    let mut problems = common.problems;
    problems.extend(matrices.stray_problem());
    problems.extend(supervised.exit_problems());
    let mut document = CopyDocument {
        format: COPY_FORMAT.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node: task.node.clone(),
        cuda: common.cuda,
        buffer_bytes: task.buffer_bytes,
        copies: task.copies,
        warmup: task.warmup,
        warmup_ms: task.warmup_ms,
        gpus: common.gpus,
        ranks: common.ranks,
        tests: matrices.tests,
        around: None,
        problems,
        complete: false,
    };
    let has = |name: &String| {
        let is_part = |test: &str| test.strip_prefix(name.as_str()).is_some_and(is_suffix);
        document.tests.iter().any(|test| is_part(&test.testcase))
            || document.problems.iter().any(|it| it.testcase.as_deref().is_some_and(is_part))
    };
    document.complete = supervised.is_complete(&document.problems) && task.tests.iter().all(has);
    document
}

/// A part of a test has the test's name with a suffix.
fn is_suffix(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with('_')
}

/// Tests in their starting order.
struct CopyMatrices {
    readings: usize,
    tests: Vec<CopyTest>,
    indices: BTreeMap<String, usize>,
    /// Count of numbers that belong to no test, and the first of them.
    strays: Option<(u64, ProbeMatrixCell)>,
}

impl CopyMatrices {
    fn new(readings: u32) -> Self {
        let readings = usize::try_from(readings).unwrap_or(usize::MAX);
        Self { readings, tests: Vec::new(), indices: BTreeMap::new(), strays: None }
    }

    fn begin_test(&mut self, shape: &ProbeMatrixShape) {
        if self.indices.contains_key(&shape.testcase) {
            return;
        }
        self.indices.insert(shape.testcase.clone(), self.tests.len());
        self.tests.push(CopyTest {
            testcase: shape.testcase.clone(),
            unit: shape.unit.clone(),
            rows: shape.rows.clone(),
            cols: shape.cols.clone(),
            readings: Vec::new(),
        });
    }

    fn add_cell(&mut self, cell: &ProbeMatrixCell) {
        let readings = self.readings;
        let place = self.indices.get(&cell.testcase).and_then(|at| self.tests.get_mut(*at));
        let place = place.and_then(|test| cell_slot(test, cell, readings));
        match place.filter(|_| cell.value.is_finite()) {
            Some(place) => *place = Some(cell.value),
            None => self.strays.get_or_insert_with(|| (0, cell.clone())).0 += 1,
        }
    }

    fn stray_problem(&self) -> Option<ProbeProblem> {
        let (count, first) = self.strays.as_ref()?;
        let detail = format!(
            "{count} numbers belong to no test, first row {} column {} of {} reading {}",
            first.row, first.col, first.testcase, first.reading
        );
        Some(ProbeProblem::new(
            OutputProblemKind::Unrecognised,
            ProbeProblemClass::Unreadable,
            detail,
        ))
    }
}

fn cell_slot<'t>(
    test: &'t mut CopyTest,
    cell: &ProbeMatrixCell,
    readings: usize,
) -> Option<&'t mut Option<f64>> {
    let reading = usize::try_from(cell.reading).ok().filter(|at| *at < readings)?;
    let row = test.rows.iter().position(|label| *label == cell.row)?;
    let col = test.cols.iter().position(|label| *label == cell.col)?;
    while test.readings.len() <= reading {
        test.readings.push(vec![vec![None; test.cols.len()]; test.rows.len()]);
    }
    test.readings.get_mut(reading)?.get_mut(row)?.get_mut(col)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::child_output::{ChildExitReason, ChildOutput};
    use super::*;
    use model::probe_report::ProbedGpu;

    const READ: &str = "device_to_device_memcpy_read_ce";

    fn task() -> CopyTask {
        CopyTask {
            cuda: None,
            root: PathBuf::from("/"),
            node: "n1".to_owned(),
            gpus: Vec::new(),
            tests: vec![READ.to_owned()],
            readings: 2,
            buffer_bytes: 1 << 20,
            copies: 4,
            warmup: 1,
            warmup_ms: 0,
            across: None,
        }
    }

    fn cell(row: &str, col: &str, reading: u32, value: f64) -> ProbeMessage {
        let (row, col) = (row.to_owned(), col.to_owned());
        ProbeMessage::Cell(ProbeMatrixCell { testcase: READ.to_owned(), row, col, reading, value })
    }

    fn shape() -> ProbeMessage {
        let labels = vec!["0".to_owned(), "1".to_owned()];
        ProbeMessage::Test(ProbeMatrixShape {
            testcase: READ.to_owned(),
            unit: "GB/s".to_owned(),
            rows: labels.clone(),
            cols: labels,
        })
    }

    fn supervised(lines: Vec<ProbeMessage>, fate: ChildExitReason) -> SupervisorOutput {
        let child = ChildOutput { messages: lines, exit: Some(fate), ..ChildOutput::new("", None) };
        SupervisorOutput { children: vec![child], ..SupervisorOutput::default() }
    }

    fn whole() -> Vec<ProbeMessage> {
        let gpu = ProbeMessage::Gpu(ProbedGpu { index: 0, ..ProbedGpu::default() });
        let cells = [
            cell("0", "1", 0, 390.0),
            cell("1", "0", 0, 391.0),
            cell("0", "1", 1, 392.0),
            cell("1", "0", 1, 393.0),
        ];
        [gpu, shape()].into_iter().chain(cells).chain([ProbeMessage::End]).collect()
    }

    #[test]
    fn numbers_appear_in_their_cells() {
        let got = build_document(&task(), &supervised(whole(), ChildExitReason::Success));
        let expected = vec![
            vec![vec![None, Some(390.0)], vec![Some(391.0), None]],
            vec![vec![None, Some(392.0)], vec![Some(393.0), None]],
        ];
        assert_eq!(got.tests[0].readings, expected);
        assert!(got.complete, "{:?}", got.problems);
        assert_eq!(got.gpus.len(), 1);
    }

    #[test]
    fn a_process_that_died_leaves_its_numbers_and_a_problem() {
        let mut lines = whole();
        lines.truncate(3);
        let mut supervised = supervised(lines, ChildExitReason::Signaled(6));
        supervised.children[0].current_step = Some("cuMemcpyAsync GPU 1 -> 0".to_owned());
        supervised.children[0].stderr_tail = vec!["terminate: x".to_owned(), "aborted".to_owned()];
        let got = build_document(&task(), &supervised);
        assert!(!got.complete);
        assert_eq!(got.tests[0].readings, vec![vec![vec![None, Some(390.0)], vec![None, None]]]);
        let problem = &got.problems[0];
        assert_eq!(problem.class.as_str(), "child-died");
        assert_eq!(
            problem.detail,
            "the probe's process was killed by SIGABRT (6) in: cuMemcpyAsync GPU 1 -> 0; last \
             output: terminate: x aborted"
        );
    }

    #[test]
    fn a_requested_test_that_did_not_start_is_missing() {
        let mut task = task();
        task.tests.push("device_local_copy".to_owned());
        assert!(!build_document(&task, &supervised(whole(), ChildExitReason::Success)).complete);
        let mut waived =
            ProbeProblem::new(OutputProblemKind::Waived, ProbeProblemClass::OneGpu, "one GPU");
        waived.testcase = Some("device_local_copy".to_owned());
        let mut lines = whole();
        lines.insert(0, ProbeMessage::Problem(waived));
        assert!(build_document(&task, &supervised(lines, ChildExitReason::Success)).complete);
    }

    #[test]
    fn wrong_data_completes_a_measurement_and_an_error_does_not() {
        for (kind, complete) in
            [(OutputProblemKind::Corrupt, true), (OutputProblemKind::Error, false)]
        {
            let mut lines = whole();
            lines.insert(
                0,
                ProbeMessage::Problem(ProbeProblem::new(kind, ProbeProblemClass::NoTime, "y")),
            );
            assert_eq!(
                build_document(&task(), &supervised(lines, ChildExitReason::Success)).complete,
                complete
            );
        }
    }

    #[test]
    fn a_number_without_a_test_is_reported_and_omitted() {
        let mut lines = whole();
        lines.insert(3, cell("7", "0", 0, 1.0));
        lines.insert(3, cell("0", "1", 2, 1.0));
        lines.insert(3, cell("0", "1", 0, f64::NAN));
        let got = build_document(&task(), &supervised(lines, ChildExitReason::Success));
        assert!(!got.complete);
        assert!(got.problems[0].detail.starts_with("3 numbers belong to no test"), "{got:?}");
        assert_eq!(got.tests[0].readings.len(), 2);
    }

    #[test]
    fn an_interruption_is_reported_once_and_an_end_without_output_is_cut_short() {
        let mut two = supervised(Vec::new(), ChildExitReason::Interrupted("interrupted"));
        two.children.push(two.children[0].clone());
        two.interrupted = Some("interrupted");
        assert_eq!(build_document(&task(), &two).problems.len(), 1);
        let silent = supervised(Vec::new(), ChildExitReason::Success);
        assert_eq!(build_document(&task(), &silent).problems[0].class.as_str(), "cut-short");
    }
}
