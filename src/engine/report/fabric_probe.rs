//! The ways of sharing GPU memory that a node allows, as a table.

use super::plain_text::to_plain;
use super::probe_table;
use super::probe_table::{UNKNOWN, render_table};
use model::fabric_probe::{FabricProbeDocument, FabricStep};

/// Renders the whole report.
pub fn render(document: &FabricProbeDocument) -> String {
    let cuda = document.cuda.as_deref().map_or(UNKNOWN.into(), to_plain);
    let mib = document.bytes >> 20;
    let mut text = format!(
        "{}   CUDA {cuda}   two processes, {mib} MiB of every GPU\n",
        to_plain(&document.node)
    );
    if !document.steps.is_empty() {
        text.push('\n');
        let header = ["step", "GPUs", "said"].map(str::to_owned);
        text.push_str(&render_table(&header, 3, step_rows(&document.steps)));
    }
    probe_table::write_problems(&mut text, &document.problems);
    if document.complete {
        text.push_str("\nEvery way of sharing memory works on this node.\n");
    }
    text
}

/// One line per step, and more if GPUs differ.
fn step_rows(steps: &[FabricStep]) -> Vec<Vec<String>> {
    let mut rows: Vec<(&FabricStep, Vec<String>)> = Vec::new();
    for step in steps {
        let gpu = step.gpu.map(|gpu| gpu.to_string());
        match rows.iter_mut().find(|(it, _)| it.step == step.step && it.message == step.message) {
            Some((_, gpus)) => gpus.extend(gpu),
            None => rows.push((step, gpu.into_iter().collect())),
        }
    }
    let order = |step: &FabricStep| steps.iter().position(|it| it.step == step.step);
    rows.sort_by_key(|(step, _)| order(step));
    rows.into_iter()
        .map(|(step, gpus)| {
            let gpus = if gpus.is_empty() { "-".to_owned() } else { gpus.join(",") };
            vec![step.step.clone(), gpus, step.message.clone()]
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::probe_table::fixture;
    use super::*;
    use model::fabric_probe::FABRIC_PROBE_FORMAT;
    use model::parse_output::OutputProblemKind;
    use model::probe_problem_class::ProbeProblemClass;
    use model::probe_report::ProbeProblem;

    #[test]
    fn steps_are_shown_once_where_gpus_agree() {
        let step = |step: &str, gpu: Option<u32>, result: &str| FabricStep {
            step: step.to_owned(),
            gpu,
            message: result.to_owned(),
        };
        let refused = "cuMemCreate: CUDA_ERROR_NOT_PERMITTED (800)";
        let why = "no IMEX channel is visible: make one (`nvidia-modprobe -c 0`)";
        let document = FabricProbeDocument {
            format: FABRIC_PROBE_FORMAT.to_owned(),
            version: "0.1.0".to_owned(),
            node: "n1".to_owned(),
            cuda: Some("13.0".to_owned()),
            bytes: 2 << 20,
            gpus: fixture::two(),
            steps: vec![
                step("imex-channels", None, "none"),
                step("ipc-create", Some(0), "ok"),
                step("fabric-create", Some(0), refused),
                step("ipc-create", Some(1), "ok"),
                step("fabric-create", Some(1), "ok"),
            ],
            problems: vec![ProbeProblem::new(
                OutputProblemKind::Error,
                ProbeProblemClass::NoImexChannel,
                why,
            )],
            complete: false,
        };
        insta::assert_snapshot!(render(&document));
    }
}
