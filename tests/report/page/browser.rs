//! A real headless browser, controlled through its protocol over two pipes (Chrome DevTools
//! Protocol, messages ended by a zero byte).
//!
//! It gets a temporary folder, and ends with the test. This module knows nothing of the page
//! under test.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use serde_json::{Value, json};

/// Program names of such browsers.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
/// After this time without a message the browser counts as hanging.
const SILENCE: Duration = Duration::from_secs(90);

/// A running browser with one page.
pub(super) struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    next: u64,
    session: Option<String>,
    events: Vec<Value>,
    _profile: tempfile::TempDir,
}

/// The browser of this machine, or why it is missing.
fn program() -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = std::env::split_paths(&path).flat_map(|dir| NAMES.map(|name| dir.join(name)));
    let found = all.into_iter().find(|file| file.is_file());
    found.ok_or_else(|| format!("none of {} is on PATH", NAMES.join(", ")))
}

impl Browser {
    /// Starts one; prints SKIPPED and the reason where it is missing.
    #[expect(clippy::print_stderr, reason = "a test that checks nothing reports it")]
    pub(super) fn start() -> Option<Self> {
        let program = match program() {
            Ok(program) => program,
            Err(why) => {
                eprintln!("SKIPPED: {why}");
                return None;
            }
        };
        let profile = tempfile::tempdir().expect("a folder");
        // The protocol wants descriptors 3 and 4, which only a shell can set up.
        let call = "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null";
        #[expect(clippy::disallowed_methods, reason = "a test starts the browser")]
        let mut child = Command::new("sh")
            .args(["-c", call])
            .arg(program)
            .args([
                "--headless=new",
                // Containers and root have no sandbox; the pages are generated here.
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-background-networking",
                "--hide-scrollbars",
                "--remote-debugging-pipe",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let to = child.stdin.take().expect("piped");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        let (send, from) = mpsc::channel();
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while out.read_until(0, &mut message).is_ok_and(|read| 0 < read) {
                message.pop();
                let parsed = serde_json::from_slice(&message);
                if parsed.is_ok_and(|value: Value| send.send(value).is_err()) {
                    return;
                }
                message.clear();
            }
        });
        let mut browser =
            Self { child, to, from, next: 0, session: None, events: Vec::new(), _profile: profile };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", &attach);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        Some(browser)
    }

    /// Sends a command and waits for the answer.
    pub(super) fn call(&mut self, method: &str, params: &Value) -> Value {
        self.next += 1;
        let mut message = json!({"id": self.next, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = serde_json::to_vec(&message).expect("JSON");
        bytes.push(0);
        self.to.write_all(&bytes).expect("the browser listens");
        loop {
            let mut answer = self.from.recv_timeout(SILENCE).expect("the browser answers");
            if answer["id"] == json!(self.next) {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].take();
            }
            self.events.push(answer);
        }
    }

    fn wait_for(&mut self, method: &str) {
        while !self.events.iter().any(|event| event["method"] == method) {
            let event = self.from.recv_timeout(SILENCE).expect("the browser goes on");
            self.events.push(event);
        }
    }

    /// Opens a file, with the part after `#`, and forgets earlier messages.
    pub(super) fn open(&mut self, file: &Path, hash: &str) {
        self.events.clear();
        // A change of the fragment alone would not load the page.
        self.call("Page.navigate", &json!({"url": "about:blank"}));
        self.wait_for("Page.loadEventFired");
        self.events.clear();
        let url = format!("file://{}{hash}", file.display());
        self.call("Page.navigate", &json!({ "url": url }));
        self.wait_for("Page.loadEventFired");
    }

    /// The value of an expression on the page.
    pub(super) fn ask(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut answer = self.call("Runtime.evaluate", &params);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    /// The same, as text.
    pub(super) fn text(&mut self, expression: &str) -> String {
        let value = self.ask(expression);
        value.as_str().map_or_else(|| value.to_string(), str::to_owned)
    }

    /// Presses and releases a key.
    pub(super) fn key(&mut self, key: &str) {
        let code = match key {
            "ArrowLeft" => 37,
            "ArrowUp" => 38,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            "Enter" => 13,
            "Tab" => 9,
            _ => 0,
        };
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let params = json!({
                "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text,
            });
            self.call("Input.dispatchKeyEvent", &params);
        }
    }

    pub(super) fn point(&mut self, x: f64, y: f64) {
        self.call("Input.dispatchMouseEvent", &json!({"type": "mouseMoved", "x": x, "y": y}));
    }

    pub(super) fn size(&mut self, width: u32, height: u32) {
        let params =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", &params);
    }

    /// `light` or `dark`, and `print` or `` for the screen.
    pub(super) fn media(&mut self, scheme: &str, media: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        let params = json!({"media": media, "features": features});
        self.call("Emulation.setEmulatedMedia", &params);
    }

    pub(super) fn scripts(&mut self, run: bool) {
        self.call("Emulation.setScriptExecutionDisabled", &json!({"value": !run}));
    }

    pub(super) fn print(&mut self) -> Vec<u8> {
        let answer = self.call("Page.printToPDF", &json!({"preferCSSPageSize": true}));
        decoded(&answer)
    }

    /// The content of the window, as PNG.
    pub(super) fn picture(&mut self) -> Vec<u8> {
        let answer = self.call("Page.captureScreenshot", &json!({"format": "png"}));
        decoded(&answer)
    }

    /// Problems since the page was opened: errors, refused scripts and styles, and every request
    /// for anything but the file itself.
    pub(super) fn complaints(&mut self) -> Vec<String> {
        // A picture waits for a frame, so that pending work is done, and needs no script: with
        // scripts off, no promise of the page resolves.
        self.call("Page.captureScreenshot", &json!({"format": "png"}));
        let mut out = Vec::new();
        for event in &self.events {
            let params = &event["params"];
            match event["method"].as_str().unwrap_or_default() {
                "Runtime.consoleAPICalled" | "Runtime.exceptionThrown" | "Log.entryAdded" => {
                    out.push(params.to_string());
                }
                "Network.requestWillBeSent" if params["type"] != "Document" => {
                    out.push(format!("loads {}", params["request"]["url"]));
                }
                _ => {}
            }
        }
        out
    }
}

fn decoded(answer: &Value) -> Vec<u8> {
    use base64::Engine as _;
    let text = answer["data"].as_str().expect("data");
    base64::engine::general_purpose::STANDARD.decode(text).expect("base64")
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
