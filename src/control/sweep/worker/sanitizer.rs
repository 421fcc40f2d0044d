//! Strips control sequences, which would control a terminal, from a worker's messages.
//!
//! Text from a node is untrusted: a process of any user chooses its own name. Outputs of tools are
//! kept unchanged. Pure.

use model::raw_result::ProcessEnding;
use model::text::clean;
use model::worker_protocol::{MachineEnvironment, ProcessReport, WorkerHello, WorkerMessage};

/// A message with its texts cleaned.
pub(super) fn sanitize_message(answer: WorkerMessage) -> WorkerMessage {
    match answer {
        WorkerMessage::Hello(it) => WorkerMessage::Hello(Box::new(sanitize_hello(*it))),
        WorkerMessage::Done(done) => {
            let gpus = done.gpus.iter().map(|line| clean(line)).collect();
            WorkerMessage::Done(Box::new(ProcessReport {
                ending: sanitize_ending(done.ending),
                gpus,
                ..*done
            }))
        }
        WorkerMessage::Refused { id, why } => WorkerMessage::Refused { id, why: clean(&why) },
        WorkerMessage::Fault { why } => WorkerMessage::Fault { why: clean(&why) },
        WorkerMessage::Ready { .. } | WorkerMessage::Output { .. } | WorkerMessage::Asks { .. } => {
            answer
        }
    }
}

fn sanitize_hello(hello: WorkerHello) -> WorkerHello {
    let one = |text: Option<String>| text.as_deref().map(clean);
    let all = |texts: &[String]| texts.iter().map(|text| clean(text)).collect::<Vec<_>>();
    let reported = hello.environment;
    let interfaces = reported.interfaces.iter().map(|(device, at)| (clean(device), all(at)));
    let environment = MachineEnvironment {
        hostname: clean(&reported.hostname),
        kernel: one(reported.kernel),
        boot_id: one(reported.boot_id),
        driver: one(reported.driver),
        interfaces: interfaces.collect(),
        gpus: all(&reported.gpus),
        load: reported.load,
        cpus: reported.cpus,
    };
    WorkerHello { version: clean(&hello.version), environment, protocol: hello.protocol }
}

fn sanitize_ending(ending: ProcessEnding) -> ProcessEnding {
    match ending {
        ProcessEnding::Missing { program } => ProcessEnding::Missing { program: clean(&program) },
        ProcessEnding::Busy { why } => ProcessEnding::Busy { why: clean(&why) },
        ProcessEnding::Partly { why } => ProcessEnding::Partly { why: clean(&why) },
        ProcessEnding::NotStarted { why, .. } => ProcessEnding::not_started(clean(&why)),
        ProcessEnding::Exited { .. }
        | ProcessEnding::Signalled { .. }
        | ProcessEnding::TimedOut
        | ProcessEnding::Interrupted => ending,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clears the screen, and reverses the direction of the line.
    const TAIL: &str = "\\u001b[2J\\u202e";

    #[test]
    fn no_message_of_a_worker_controls_a_terminal() {
        let reported = [
            r#"{"type":"hello","protocol":2,"version":"1~","environment":{"hostname":"h~",
                "kernel":"k~","boot_id":"b~","driver":"d~","interfaces":{"e~":["a~"]},
                "gpus":["0, g~"]}}"#,
            r#"{"type":"refused","id":1,"why":"busy: pid 7 (x~) uses a GPU"}"#,
            r#"{"type":"fault","why":"w~"}"#,
            r#"{"type":"done","id":1,"duration_s":1,"gpus":["0, g~"],
                "ending":{"how":"missing","program":"p~"}}"#,
            r#"{"type":"done","id":1,"duration_s":1,"ending":{"how":"busy","why":"w~"}}"#,
            r#"{"type":"done","id":1,"duration_s":1,"ending":{"how":"partly","why":"w~"}}"#,
            r#"{"type":"done","id":1,"duration_s":1,"ending":{"how":"not_started","why":"w~"}}"#,
        ];
        for text in reported {
            let plain: WorkerMessage =
                serde_json::from_str(&text.replace('~', "")).expect("a word");
            let hostile = serde_json::from_str(&text.replace('~', TAIL)).expect("a word");
            let shown = serde_json::to_string(&sanitize_message(hostile)).expect("plain data");
            // The rest of an escape sequence without its first character is text.
            let rest = shown.replace("[2J", "");
            assert_eq!(rest, serde_json::to_string(&plain).expect("plain data"), "{shown}");
        }
    }
}
