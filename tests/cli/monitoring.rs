//! Output of runs for monitoring and for notifications, as configured: the textfile, receivers
//! that accept, hang or echo secrets, and data that is never sent.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, ResponseTemplate};

const SECRET: &str = "XSECRETXWEBHOOKX";
const TOKEN: &str = "XTOKENXOFXBEARERX";

/// A site with one simulated node, optionally at half its rate, and these lines of configuration.
fn site(is_slow: bool, more: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let config = format!(
        "run_dir = \"runs\"\n[launcher]\nkind = \"sim\"\nscenario = \"scenario.toml\"\n{more}"
    );
    fs::write(folder.path().join("fabricgate.toml"), config).expect("written");
    scenario(folder.path(), is_slow);
    folder
}

fn scenario(folder: &Path, is_slow: bool) {
    let fault = "[[fault]]\nkind = \"power-cap\"\nnode = \"h1\"\nshare = 0.5\n";
    let text = format!(
        "title = \"t\"\nseed = 5\n[noise]\nsigma = 0.003\n[[domain]]\nnodes = \"h1\"\n\
         platform = \"hgx-h100\"\nper_node = true\n{}",
        if is_slow { fault } else { "" }
    );
    fs::write(folder.join("scenario.toml"), text).expect("written");
}

#[expect(clippy::disallowed_methods, reason = "a test starts the program itself")]
fn command(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabricgate"));
    command.current_dir(folder).args(["--config", "fabricgate.toml"]).args(args);
    command
}

fn fabricgate(folder: &Path, args: &[&str]) -> Output {
    command(folder, args).output().expect("fabricgate runs")
}

/// Runs a measurement; the exit code and stderr.
fn admit(folder: &Path) -> (Option<i32>, String) {
    let run = fabricgate(folder, &["admit", "--even-if-busy", "--no-progress"]);
    (run.status.code(), String::from_utf8_lossy(&run.stderr).into_owned())
}

/// Every file below a folder that contains one of these strings.
fn holding(folder: &Path, words: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let text = String::from_utf8_lossy(&fs::read(&path).expect("a file")).into_owned();
                if words.iter().any(|word| text.contains(word)) {
                    found.push(path.file_name().expect("a name").to_string_lossy().into_owned());
                }
            }
        }
    }
    found.sort();
    found
}

async fn receiver(answer: ResponseTemplate) -> MockServer {
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(answer).mount(&server).await;
    server
}

/// `[notify]` with one receiver whose address and token are in files.
fn notify(folder: &Path, server: &MockServer, more: &str) {
    let address = format!("{}/hooks/{SECRET}\n", server.uri());
    fs::write(folder.join("address"), address).expect("written");
    fs::write(folder.join("token"), TOKEN).expect("written");
    let path = folder.join("fabricgate.toml");
    let text = fs::read_to_string(&path).expect("the configuration");
    let section = format!(
        "[notify]\nwithin_s = 3\n[[notify.target]]\nname = \"ops\"\nkind = \"generic\"\n\
         url_file = \"address\"\nbearer_file = \"token\"\n{more}\n"
    );
    fs::write(path, text + &section).expect("written");
}

async fn received(server: &MockServer) -> Vec<Value> {
    let requests = server.received_requests().await.expect("they are kept");
    requests.iter().map(|it| serde_json::from_slice(&it.body).expect("JSON")).collect()
}

#[tokio::test]
async fn a_finding_is_sent_once_and_its_end_once() {
    let server = receiver(ResponseTemplate::new(200)).await;
    let folder = site(true, "");
    notify(folder.path(), &server, "");
    for _ in 0..2 {
        let (code, stderr) = admit(folder.path());
        assert_eq!(code, Some(3), "{stderr}");
        assert!(!stderr.contains("notify:"), "{stderr}");
    }
    let requests = received(&server).await;
    assert_eq!(requests.len(), 1, "the second run has no news: {requests:?}");
    assert_eq!(requests[0]["format"], "fabricgate.notice/1");
    assert_eq!(requests[0]["items"][0]["node"], "h1");
    assert_eq!(requests[0]["items"][0]["event"], "degraded");
    let run_folder = requests[0]["folder"].as_str().expect("a folder");
    assert!(Path::new(run_folder).join("verdicts.json").is_file(), "{run_folder}");
    scenario(folder.path(), false);
    assert_eq!(admit(folder.path()).0, Some(0));
    assert_eq!(admit(folder.path()).0, Some(0));
    let requests = received(&server).await;
    assert_eq!(requests.len(), 2, "{requests:?}");
    assert_eq!(requests[1]["over"][0]["key"], "node/h1");
    let asked = server.received_requests().await.expect("they are kept");
    let token = asked[0].headers.get("authorization").expect("a token");
    assert_eq!(token.to_str().expect("text"), format!("Bearer {TOKEN}"));
}

/// Copies of a run, as if made this many days earlier.
fn days_before(folder: &Path, days: i64) {
    let runs = folder.join("runs");
    let paths = fs::read_dir(&runs).expect("runs").map(|entry| entry.expect("an entry").path());
    let run = paths.into_iter().find(|path| path.join("run.json").is_file()).expect("a run");
    let text = fs::read_to_string(run.join("run.json")).expect("read");
    for day in 1..=days {
        let mut record: Value = serde_json::from_str(&text).expect("JSON");
        let created = record["info"]["created"].as_str().expect("a time");
        let at: jiff::Timestamp = created.parse().expect("a time");
        let at = jiff::Timestamp::from_second(at.as_second() - day * 86_400).expect("in range");
        let id = format!("{}-{day:06}", at.strftime("%Y%m%d-%H%M%S"));
        record["info"]["created"] = at.to_string().into();
        record["info"]["id"] = id.clone().into();
        fs::create_dir(runs.join(&id)).expect("made");
        for entry in fs::read_dir(&run).expect("listed").flatten() {
            if entry.path().is_file() {
                fs::copy(entry.path(), runs.join(&id).join(entry.file_name())).expect("copied");
            }
        }
        fs::write(runs.join(&id).join("run.json"), record.to_string()).expect("written");
    }
}

#[tokio::test]
async fn a_drift_is_reported_when_it_begins_and_not_every_day() {
    let server = receiver(ResponseTemplate::new(200)).await;
    let folder = site(false, "[history]\n");
    notify(folder.path(), &server, "on = [\"drift\", \"pass-again\"]");
    assert_eq!(admit(folder.path()).0, Some(0));
    days_before(folder.path(), 9);
    assert_eq!(fabricgate(folder.path(), &["history"]).status.code(), Some(0));
    assert!(received(&server).await.is_empty());
    scenario(folder.path(), true);
    for _ in 0..2 {
        // Runs of one second have no order in time.
        tokio::time::sleep(std::time::Duration::from_millis(1_100)).await;
        let (code, stderr) = admit(folder.path());
        assert_eq!(code, Some(3), "{stderr}");
        assert!(!stderr.contains("notify:"), "{stderr}");
    }
    let requests = received(&server).await;
    assert_eq!(requests.len(), 1, "the second run has no news: {requests:#?}");
    let items = requests[0]["items"].as_array().expect("items");
    assert!(!items.is_empty() && items.iter().all(|it| it["event"] == "drift"), "{items:#?}");
    let of_node =
        |it: &&Value| it["key"].as_str().is_some_and(|it| it.starts_with("drift/node/h1/"));
    let how = items.iter().find(of_node).expect("h1")["how"].as_str().expect("words");
    assert!(how.contains("% less than usual from run "), "{how}");
    // The history is unreadable: no item is new, and none has ended.
    let history = folder.path().join("runs-history.sqlite");
    let whole = fs::read(&history).expect("a history");
    fs::write(&history, "no database, no database, no database").expect("written");
    let (code, stderr) = admit(folder.path());
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("adds this run later") && stderr.contains("metrics: "), "{stderr}");
    assert_eq!(received(&server).await.len(), 1);
    fs::write(&history, whole).expect("written");
}

#[tokio::test]
async fn a_scheduler_that_is_down_does_not_delay_notifications() {
    let server = receiver(ResponseTemplate::new(200)).await;
    let more = "[gate]\nstate = \"gate\"\nscontrol = [\"false\"]\n[history]\nenabled = true\n\
                [metrics]\ntextfile = \"f.prom\"\n";
    let folder = site(true, more);
    notify(folder.path(), &server, "");
    let words = ["admit", "--even-if-busy", "--no-progress", "--apply"];
    let run = fabricgate(folder.path(), &words);
    let stderr = String::from_utf8_lossy(&run.stderr).into_owned();
    assert_eq!(run.status.code(), Some(5), "{stderr}");
    let shown = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(shown.contains("h1"), "the verdict is shown: {shown}{stderr}");
    let requests = received(&server).await;
    assert_eq!(requests.len(), 1, "{requests:?}: {stderr}");
    assert_eq!(requests[0]["items"][0]["event"], "degraded");
    assert!(requests[0]["items"][0].get("done").is_none(), "nothing was done: {requests:?}");
    let text = fs::read_to_string(folder.path().join("f.prom")).expect("a textfile");
    let line = "fabricgate_last_run_verdict{profile=\"admit\",verdict=\"degraded\"} 1\n";
    assert!(text.contains(line), "{text}");
    let history = fabricgate(folder.path(), &["--json", "history", "h1"]);
    let history: Value = serde_json::from_slice(&history.stdout).expect("a document");
    assert_eq!((&history["runs"], &history["nodes"][0]["node"]), (&1.into(), &"h1".into()));
}

#[tokio::test]
async fn no_secret_is_in_any_output_or_file() {
    // A receiver that echoes the secrets in its answer.
    let answer = format!("no hook /hooks/{SECRET} for {TOKEN}");
    let server = receiver(ResponseTemplate::new(403).set_body_string(answer)).await;
    let folder = site(true, "[metrics]\ntextfile = \"f.prom\"\n");
    notify(folder.path(), &server, "");
    let secrets = [SECRET, TOKEN];
    for words in [
        &["admit", "--even-if-busy", "--no-progress"][..],
        &["--verbose", "notify", "test"],
        &["--json", "notify", "test", "ops"],
        &["notify", "test", "--dry-run"],
    ] {
        let run = fabricgate(folder.path(), words);
        let mut stdout = String::from_utf8_lossy(&run.stdout).into_owned();
        stdout.push_str(&String::from_utf8_lossy(&run.stderr));
        assert!(secrets.iter().all(|secret| !stdout.contains(secret)), "{words:?}: {stdout}");
        if !words.contains(&"--dry-run") {
            assert!(stdout.contains("403") && stdout.contains("(hidden)"), "{words:?}: {stdout}");
        }
    }
    assert_eq!(holding(folder.path(), &secrets), ["address", "token"]);
    // A retry would have the same result: no receiver was tried twice.
    assert_eq!(received(&server).await.len(), 3);
}

#[tokio::test]
async fn a_token_may_come_from_the_environment_and_appears_in_no_output_or_file() {
    let answer = ResponseTemplate::new(401).set_body_string(format!("not you, {TOKEN}"));
    let server = receiver(answer).await;
    let folder = site(true, "");
    notify(folder.path(), &server, "attempts = 1");
    let path = folder.path().join("fabricgate.toml");
    let text = fs::read_to_string(&path).expect("the configuration");
    let text = text.replace("bearer_file = \"token\"", "bearer_env = \"OUR_BEARER\"");
    fs::write(&path, text).expect("written");
    fs::remove_file(folder.path().join("token")).expect("it was there");
    let output = |is_set: bool| {
        let mut command = command(folder.path(), &["--verbose", "--json", "notify", "test"]);
        if is_set {
            command.env("OUR_BEARER", TOKEN);
        }
        let run = command.output().expect("fabricgate runs");
        assert_eq!(run.status.code(), Some(5));
        String::from_utf8_lossy(&[run.stdout, run.stderr].concat()).into_owned()
    };
    let refused = output(true);
    assert!(refused.contains("401") && !refused.contains(TOKEN), "{refused}");
    let asked = server.received_requests().await.expect("they are kept");
    let token = asked[0].headers.get("authorization").expect("a token");
    assert_eq!(token.to_str().expect("text"), format!("Bearer {TOKEN}"));
    assert_eq!(holding(folder.path(), &[TOKEN]), Vec::<String>::new());
    // Without the variable no request is sent that the receiver would refuse anyway.
    assert!(output(false).contains("OUR_BEARER: not set in the environment"));
    assert_eq!(received(&server).await.len(), 1);
}

#[tokio::test]
async fn a_receiver_that_hangs_changes_no_exit_code() {
    let late = ResponseTemplate::new(200).set_delay(std::time::Duration::from_secs(600));
    let server = receiver(late).await;
    let folder = site(true, "");
    notify(folder.path(), &server, "timeout_s = 0.5\nattempts = 2");
    let (code, stderr) = admit(folder.path());
    assert_eq!(code, Some(3), "{stderr}");
    assert!(
        stderr.contains("notify: ops: ") && stderr.contains("no answer within 0.5 s"),
        "{stderr}"
    );
    // An undelivered notification is sent when the receiver is back.
    drop(server);
    let server = receiver(ResponseTemplate::new(200)).await;
    fs::write(folder.path().join("address"), format!("{}/hooks/{SECRET}", server.uri()))
        .expect("written");
    assert_eq!(admit(folder.path()).0, Some(3));
    assert_eq!(received(&server).await.len(), 1);
}

#[tokio::test]
async fn a_run_under_sim_touches_no_monitoring_of_real_nodes() {
    let server = receiver(ResponseTemplate::new(200)).await;
    let folder = site(true, "[metrics]\ntextfile = \"f.prom\"\n");
    notify(folder.path(), &server, "");
    let words = ["admit", "--even-if-busy", "--no-progress", "--sim", "scenario.toml"];
    let run = fabricgate(folder.path(), &words);
    let stderr = String::from_utf8_lossy(&run.stderr).into_owned();
    assert_eq!(run.status.code(), Some(3), "{stderr}");
    assert!(!folder.path().join("f.prom").exists() && received(&server).await.is_empty());
    assert!(stderr.contains("the textfile is unchanged") && stderr.contains("nothing is sent"));
}

#[test]
fn several_profiles_share_a_textfile_and_a_full_or_missing_folder_is_a_note() {
    let folder = site(true, "[metrics]\ntextfile = \"f.prom\"\n");
    assert_eq!(admit(folder.path()).0, Some(3));
    let words = ["recertify", "--even-if-busy", "--no-progress", "h1"];
    let run = fabricgate(folder.path(), &words);
    let stderr = String::from_utf8_lossy(&run.stderr).into_owned();
    assert_eq!(run.status.code(), Some(3), "{stderr}");
    let text = fs::read_to_string(folder.path().join("f.prom")).expect("a textfile");
    for profile in ["admit", "recertify"] {
        let line = format!(
            "fabricgate_last_run_verdict{{profile=\"{profile}\",verdict=\"degraded\"}} 1\n"
        );
        assert!(text.contains(&line), "{line}: {text}");
    }
    assert!(
        text.contains("fabricgate_node_worst_ratio{node=\"h1\",class=\"inside\"} 0."),
        "{text}"
    );
    assert!(!text.contains("# EOF") && !text.contains("# UNIT"), "{text}");
    let path = folder.path().join("fabricgate.toml");
    let elsewhere = fs::read_to_string(&path).expect("text").replace("f.prom", "none/f.prom");
    fs::write(&path, elsewhere).expect("written");
    let (code, stderr) = admit(folder.path());
    assert_eq!(code, Some(3), "{stderr}");
    assert!(
        stderr.contains("none/f.prom: ") && stderr.contains("does its folder exist"),
        "{stderr}"
    );
}

#[test]
fn mistakes_are_reported_with_place_and_expected_value() {
    for (more, expected) in [
        (
            "[metrics]\ntextfile = \"f.txt\"\n",
            "fabricgate.toml:6:12: textfile: \"f.txt\", expected a name",
        ),
        ("[metrics]\nnodes = 0\n", "fabricgate.toml:6:9: nodes: 0, expected 1 to"),
        ("[notify]\nwithin_s = 0.0\n", "fabricgate.toml:6:12: within_s: 0, expected 1 to 600"),
        (
            "[[notify.target]]\nname = \"a\"\nkind = \"mail\"\n",
            "fabricgate.toml:7:8: kind: unknown variant `mail`",
        ),
    ] {
        let folder = site(false, more);
        let run = fabricgate(folder.path(), &["metrics"]);
        let stderr = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(run.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(expected), "{more}: {stderr}");
    }
}
