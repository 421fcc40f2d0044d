//! Waits for a program that may hang, and reads all its output meanwhile.

use std::io::Read;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The result of a command without standard input; a hanging one is ended and fails the test.
pub(crate) fn output(command: &mut Command, limit: Duration) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let out = std::thread::spawn(move || all(out));
    let err = std::thread::spawn(move || all(err));
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("it can be waited for") {
            break status;
        }
        if limit < start.elapsed() {
            child.kill().expect("it can be ended");
            panic!("{command:?} hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let stdout = out.join().expect("stdout is read");
    Output { status, stdout, stderr: err.join().expect("stderr is read") }
}

/// All bytes of a stream.
pub(crate) fn all(stream: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.expect("a pipe").read_to_end(&mut bytes).expect("readable");
    bytes
}
