//! A watch of nodes whose resource version is too old (410): a server for these tests alone,
//! killed and restarted while the standing gate runs.

use std::fs;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use control::gate::kubernetes::KubernetesScheduler as Gate;
use control::sources::kubernetes::connection::{ResponseReadLimit, connect};
use serde_json::{Value, json};

use super::lab;
use super::outage::Process;
use super::turns::{Admin, NODES, now, through};

/// Time within which a change must be visible.
const PATIENCE: Duration = Duration::from_secs(120);

/// A watch without actions. It polls once an hour: an earlier update comes from the server.
struct Watch {
    child: Child,
    folder: tempfile::TempDir,
}

impl Watch {
    #[expect(clippy::disallowed_methods, reason = "a test is not part of the program")]
    fn start(kubeconfig: &Path, nodes: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: String| {
            fs::write(folder.path().join(name), text).expect("written");
        };
        write(
            "claims.toml",
            format!(
                "[[domain]]\nname = \"rack\"\nnodes = \"{nodes}\"\nplatform = \"gb200-nvl72\"\n"
            ),
        );
        write(
            "fabricgate.toml",
            format!(
                "claims = \"claims.toml\"\n[gate]\nthrough = \"kubernetes\"\n\
                 [gate.kubernetes]\nkubeconfig = {kubeconfig:?}\n[watch]\ninterval_s = 3600\n"
            ),
        );
        let file = |name: &str| File::create(folder.path().join(name)).expect("a file");
        let mut command = Command::new(lab::binary());
        command.args(["--json", "--config", "fabricgate.toml", "watch"]);
        command.current_dir(folder.path()).env_remove("KUBECONFIG").stdin(Stdio::null());
        command.stdout(file("told.jsonl")).stderr(file("errors"));
        Self { child: command.spawn().expect("the program"), folder }
    }

    /// Waits until its last decision meets the condition.
    fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let log = fs::read_to_string(self.folder.path().join("told.jsonl")).expect("a log");
            let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            match lines.rfind(|line| line["event"] == "looked") {
                Some(line) if is_so(&line) => return line,
                _ if PATIENCE < begun.elapsed() => panic!("{what} is not seen: {log}"),
                _ => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The server's answer to a watch from that version: an error instead of events, or events until
/// a second is over.
async fn from(kubeconfig: &Path, version: &str) -> String {
    let client =
        connect(&through(kubeconfig), ResponseReadLimit::Bounded).await.expect("a way").client;
    let uri = format!("{NODES}?watch=true&timeoutSeconds=1&resourceVersion={version}");
    let request = axum::http::Request::builder().uri(uri).body(Vec::new()).expect("a request");
    match client.request_text(request).await {
        Ok(events) => events,
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_watch_with_an_expired_version_lists_again_and_sees_missed_changes() {
    let Some(lab) = lab::own_lab(&[("FABRICGATE_LAB_BARE", "1")]) else { return };
    let kubeconfig = lab.kubeconfig("admin");
    let (admin, server) = (Admin::of(&kubeconfig), Process::of(&lab.folder));
    for name in ["relist-1", "relist-2", "relist-3"] {
        now(admin.make(name));
    }
    let watch = Watch::start(&kubeconfig, "relist-[1-3]");
    watch.until("all", |seen| seen["nodes"] == 3);
    // It polls once an hour: an earlier update shows that the watch works. Until its watch is
    // established there may be none.
    let cordon = |name: &str| {
        now(admin.patch(&format!("{NODES}/{name}"), &json!({"spec": {"unschedulable": true}})));
    };
    let are_out = |seen: &Value, count: usize| {
        let not_due = seen["not_due"].as_array().expect("a list");
        not_due.iter().any(|it| it["why"].to_string().contains("cordoned") && it["count"] == count)
    };
    cordon("relist-1");
    watch.until("a cordon", |seen| are_out(seen, 1));

    let all = now(admin.get(NODES));
    let version = all["metadata"]["resourceVersion"].as_str().expect("a version").to_owned();
    // The version increases without changes of nodes, and the history is lost with the server.
    for number in 0..5 {
        let labels = json!({"metadata": {"labels": {"number": number.to_string()}}});
        now(admin.patch("/api/v1/namespaces/default", &labels));
    }
    server.kill();
    server.start(&Gate::new(through(&kubeconfig)));
    now(admin.delete(&format!("{NODES}/relist-3")));
    cordon("relist-2");
    let answer = now(from(&kubeconfig, &version));
    assert!(answer.contains("too old resource version") || answer.contains("410"), "{answer}");
    let seen = watch.until("the rest", |seen| seen["nodes"] == 2 && are_out(seen, 2));
    assert_eq!(seen["claimed"], 3, "{seen}");

    // The watch continues from there.
    now(admin.delete(&format!("{NODES}/relist-2")));
    watch.until("another", |seen| seen["nodes"] == 1);
}
