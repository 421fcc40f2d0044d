//! Builds one document from the output of a fabric probe's two processes.
//!
//! Pure. Both do the same and test each other's memory: equal results appear once.

use super::SupervisorOutput;
use crate::probes::protocol::ProbeMessage;
use crate::probes::task::FabricTask;
use model::fabric_probe::{FABRIC_PROBE_FORMAT, FabricProbeDocument, FabricStep};

/// Builds the document.
pub fn build_document(task: &FabricTask, supervised: &SupervisorOutput) -> FabricProbeDocument {
    let common = supervised.common_report();
    let mut steps = Vec::new();
    for message in supervised.messages() {
        if let ProbeMessage::Note { name, value } = message {
            add_step(&mut steps, name, value);
        }
    }
    let mut problems = common.problems;
    problems.extend(supervised.exit_problems());
    FabricProbeDocument {
        format: FABRIC_PROBE_FORMAT.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node: task.node.clone(),
        cuda: common.cuda,
        bytes: task.bytes,
        gpus: common.gpus,
        steps,
        complete: supervised.is_complete(&problems),
        problems,
    }
}

/// Handles a note. `gpu3 fabric-create` is a step of GPU 3.
fn add_step(steps: &mut Vec<FabricStep>, name: &str, result: &str) {
    let of_gpu = name.split_once(' ').and_then(|(gpu, step)| {
        let gpu = gpu.strip_prefix("gpu")?.parse().ok()?;
        Some((Some(gpu), step))
    });
    let (gpu, step) = of_gpu.unwrap_or((None, name));
    match steps.iter_mut().find(|it| it.step == step && it.gpu == gpu) {
        None => steps.push(FabricStep { step: step.to_owned(), gpu, message: result.to_owned() }),
        Some(known) if known.message == result => {}
        Some(known) => known.message = format!("{}; the other process: {result}", known.message),
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
            got.steps.iter().map(|it| (it.step.as_str(), it.gpu, it.message.as_str())).collect();
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
