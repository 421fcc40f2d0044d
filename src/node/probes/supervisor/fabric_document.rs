//! Builds one document from the output of a fabric probe's two processes.
//!
//! Pure. Both do the same and test each other's memory: equal results appear once.

use super::SupervisorOutput;
use super::copy_document::{exit_problems, is_complete};
use crate::probes::fabric::task::FabricTask;
use crate::probes::protocol::ProbeMessage;
use model::fabric_probe::{FABRIC_PROBE_FORMAT, FabricProbeDocument, FabricStep};

/// Builds the document.
pub fn build_document(task: &FabricTask, supervised: &SupervisorOutput) -> FabricProbeDocument {
    let mut document = FabricProbeDocument {
        format: FABRIC_PROBE_FORMAT.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node: task.node.clone(),
        cuda: None,
        bytes: task.bytes,
        gpus: Vec::new(),
        steps: Vec::new(),
        problems: Vec::new(),
        complete: false,
    };
    for line in supervised.children.iter().flat_map(|child| &child.messages) {
        match line {
            ProbeMessage::Driver { cuda } => document.cuda = Some(cuda.clone()),
            ProbeMessage::Gpu(gpu) => {
                if !document.gpus.iter().any(|it| it.index == gpu.index) {
                    document.gpus.push(gpu.clone());
                }
            }
            ProbeMessage::Note { name, value } => add_step(&mut document.steps, name, value),
            ProbeMessage::Problem(problem) => {
                if !document.problems.contains(problem) {
                    document.problems.push(problem.clone());
                }
            }
            ProbeMessage::Nccl { .. }
            | ProbeMessage::Rank(_)
            | ProbeMessage::Test(_)
            | ProbeMessage::Cell(_)
            | ProbeMessage::Point { .. }
            | ProbeMessage::End => {}
        }
    }
    document.problems.extend(exit_problems(supervised));
    document.complete = is_complete(supervised, &document.problems);
    document
}

/// Handles a note. `gpu3 fabric-create` is a step of GPU 3.
fn add_step(steps: &mut Vec<FabricStep>, name: &str, result: &str) {
    let of_gpu = name.split_once(' ').and_then(|(gpu, step)| {
        let gpu = gpu.strip_prefix("gpu")?.parse().ok()?;
        Some((Some(gpu), step))
    });
    let (gpu, step) = of_gpu.unwrap_or((None, name));
    match steps.iter_mut().find(|it| it.step == step && it.gpu == gpu) {
        None => steps.push(FabricStep { step: step.to_owned(), gpu, said: result.to_owned() }),
        Some(known) if known.said == result => {}
        Some(known) => known.said = format!("{}; the other process: {result}", known.said),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::child_output::{ChildExitReason, ChildOutput};
    use super::*;

    fn note(name: &str, value: &str) -> ProbeMessage {
        ProbeMessage::Note { name: name.to_owned(), value: value.to_owned() }
    }

    #[test]
    fn equal_results_appear_once_and_different_ones_both() {
        let task = FabricTask {
            cuda: None,
            root: PathBuf::from("/"),
            node: "n1".to_owned(),
            bytes: 1 << 21,
        };
        let part = |open: &str| {
            let lines = vec![
                note("imex-channels", "channel0"),
                note("gpu0 ipc-create", "ok"),
                note("gpu0 ipc-open", open),
                ProbeMessage::End,
            ];
            ChildOutput {
                messages: lines,
                exit: Some(ChildExitReason::Success),
                ..ChildOutput::new("", None)
            }
        };
        let parts = vec![part("ok"), part("cuIpcOpenMemHandle: not permitted (800)")];
        let got = build_document(
            &task,
            &SupervisorOutput { children: parts, ..SupervisorOutput::default() },
        );
        let steps: Vec<_> =
            got.steps.iter().map(|it| (it.step.as_str(), it.gpu, it.said.as_str())).collect();
        let both = "ok; the other process: cuIpcOpenMemHandle: not permitted (800)";
        let expected = [
            ("imex-channels", None, "channel0"),
            ("ipc-create", Some(0), "ok"),
            ("ipc-open", Some(0), both),
        ];
        assert_eq!(steps, expected);
        assert!(got.complete);
    }
}
