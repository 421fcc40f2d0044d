//! Tests of the supervisor with shell scripts as probes.

use std::path::Path;

use serde_json::{Value, json};

use super::*;
use model::exchange::ExchangeShare;

fn now<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(work)
}

/// Stands in for this program: as a guard it becomes the guarded command, otherwise it runs its
/// first argument as a script. The file already exists, because a file that another process has
/// open for writing cannot be executed.
fn program() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/gpu/program.sh")
}

fn work(scripts: &[&str]) -> SupervisorSpec {
    let part = |(at, script): (usize, &&str)| ProbeChildSpec {
        name: format!("part {at}"),
        args: vec![(*script).to_owned()],
        ..ProbeChildSpec::default()
    };
    SupervisorSpec {
        executable: program(),
        node: "n1".to_owned(),
        children: scripts.iter().enumerate().map(part).collect(),
        sampler: None,
        time_limit: Duration::from_secs(60),
        max_silence: Duration::from_secs(60),
        exchanges_lists: true,
    }
}

/// Runs these scripts without other nodes.
fn run_scripts(scripts: &[&str], change: impl FnOnce(&mut SupervisorSpec)) -> SupervisorOutput {
    let mut work = work(scripts);
    change(&mut work);
    let (_keep, stop) = watch::channel(None);
    now(supervise(&work, ExchangePeers::LocalOnly, stop, &mut |_, _| {}))
}

const END: &str = r#"echo '{"type":"end"}'"#;

/// A script that requests the exchange of this number and prints the answer in a note.
fn asks(number: u64, value: &str, within_s: f64) -> String {
    format!(
        "echo 'exchange {{\"number\":{number},\"value\":{value},\"within_s\":{within_s}}}'; \
         read -r answer || exit 3; echo \"answered $answer\";"
    )
}

/// The answers that a child printed.
fn answers(child: &ChildOutput) -> Vec<ExchangeReply> {
    let lines = child.unparsed.iter().filter_map(|line| line.strip_prefix("answered "));
    lines.map(|line| serde_json::from_str(line).expect("an answer")).collect()
}

#[test]
fn output_and_exit_of_a_process_are_recorded() {
    let script = format!("echo next: one >&2; echo {{broken; {END}");
    let got = run_scripts(&[&script, "echo next: two >&2; echo oops >&2; exit 7"], |_| {});
    assert!(got.children[0].is_complete(), "{got:?}");
    assert_eq!(got.children[0].unparsed, ["{broken"]);
    assert_eq!(got.children[1].exit, Some(ChildExitReason::Failed(7)));
    let problem = got.children[1].exit_problem().expect("it failed");
    assert_eq!(problem.detail, "part 1 failed with exit code 7 in: two; last output: oops");
    assert_eq!(got.pids.len(), 2);
}

#[test]
fn a_process_that_dies_is_named_with_its_step() {
    let got = run_scripts(&["echo next: cuMemAlloc >&2; kill -ABRT $$"], |_| {});
    assert_eq!(got.children[0].exit, Some(ChildExitReason::Signaled(6)));
    let problem = got.children[0].exit_problem().expect("it died");
    assert_eq!(
        (problem.class.as_str(), problem.detail.as_str()),
        ("child-died", "part 0 was killed by SIGABRT (6) in: cuMemAlloc")
    );
}

#[test]
fn a_silent_process_is_killed_and_its_call_is_named() {
    let script = format!("{END}; echo next: cuCtxEnablePeerAccess GPU 2 to 3 >&2; sleep 60 & wait");
    let got = run_scripts(&[&script], |work| work.max_silence = Duration::from_millis(700));
    let child = &got.children[0];
    assert!(matches!(child.exit, Some(ChildExitReason::Hung(_))), "{child:?}");
    assert_eq!(child.messages, [crate::probes::protocol::ProbeMessage::End], "its output is kept");
    assert!(!child.is_complete());
    let detail = child.exit_problem().expect("it hung").detail;
    assert!(detail.contains("in: cuCtxEnablePeerAccess GPU 2 to 3: the call hangs"), "{detail}");
}

#[test]
fn the_time_limit_ends_all_processes() {
    let flood = "while :; do echo next: more >&2; sleep 0.05; done";
    let got = run_scripts(&[flood, flood], |work| work.time_limit = Duration::from_millis(600));
    for child in &got.children {
        assert_eq!(child.exit, Some(ChildExitReason::TimedOut(0.6)));
    }
}

#[test]
fn processes_of_one_node_exchange_with_each_other() {
    let (a, b) = (asks(0, "7", 30.0), asks(0, "{\"x\":1}", 30.0));
    let got = run_scripts(&[&format!("{a}{END}"), &format!("{b}{END}")], |_| {});
    assert!(got.children.iter().all(ChildOutput::is_complete), "{got:?}");
    let second = &answers(&got.children[1])[0];
    assert_eq!((second.number, second.me), (0, 1));
    assert_eq!(second.shares[0].value, Some(json!(7)));
    assert_eq!(second.shares[1].value, Some(json!({"x": 1})));
}

#[test]
fn the_others_continue_without_a_dead_process_and_get_the_reason() {
    let a = format!("{}{}{END}", asks(0, "1", 30.0), asks(1, "2", 30.0));
    let b = format!("{}echo gone >&2; exit 9", asks(0, "3", 30.0));
    let got = run_scripts(&[&a, &b], |_| {});
    let answer = &answers(&got.children[0])[1];
    assert_eq!(answer.shares[1].value, None);
    let why = answer.shares[1].gone.as_deref().expect("a reason");
    assert_eq!(why, "part 1 failed with exit code 9; last output: gone");
    assert!(got.children[0].is_complete());
}

#[test]
fn a_late_process_is_killed_and_the_others_are_answered() {
    let a = format!("{}{END}", asks(0, "1", 0.4));
    let got = run_scripts(&[&a, "echo next: slow >&2; sleep 60"], |_| {});
    assert!(got.children[0].is_complete(), "{got:?}");
    assert!(
        matches!(got.children[1].exit, Some(ChildExitReason::Excluded(_))),
        "{:?}",
        got.children[1].exit
    );
    let detail = got.children[1].exit_problem().expect("it was late").detail;
    assert!(detail.contains("did not join exchange 0") && detail.contains("in: slow"));
}

#[test]
fn a_process_that_waits_for_others_does_not_count_as_silent() {
    let a = format!("{}{END}", asks(0, "1", 30.0));
    let b = format!("for i in 1 2 3 4 5 6 7 8; do echo next: $i >&2; sleep 0.2; done; {a}");
    let got = run_scripts(&[&a, &b], |work| work.max_silence = Duration::from_millis(900));
    assert!(got.children.iter().all(ChildOutput::is_complete), "{got:?}");
}

/// Runs these scripts with other nodes, which answer a request with `reply`.
fn among_others(
    scripts: &[&str],
    mut reply: impl FnMut(ExchangeRequest) -> Option<ExchangeReply>,
    change: impl FnOnce(&mut SupervisorSpec),
) -> SupervisorOutput {
    let mut work = work(scripts);
    change(&mut work);
    let (_keep, stop) = watch::channel(None);
    let (sender, lines) = mpsc::channel(16);
    let mut send_line = |line: &str| {
        let request = line.strip_prefix(EXCHANGE_PREFIX).expect("a request");
        let request = serde_json::from_str(request).expect("a request");
        if let Some(answer) = reply(request) {
            let line = serde_json::to_vec(&answer).expect("plain data");
            sender.try_send(line).expect("room");
        }
        Ok(())
    };
    now(supervise(
        &work,
        ExchangePeers::Upstream { lines, send_line: &mut send_line },
        stop,
        &mut |_, _| {},
    ))
}

#[test]
fn the_children_of_all_nodes_are_one_list() {
    let (a, b) = (asks(0, "1", 5.0), asks(0, "2", 8.0));
    let reply = |ask: ExchangeRequest| {
        assert!(7.9 < ask.within_s, "the longest wait of any process");
        let of =
            |member: &str, value| ExchangeShare { member: member.to_owned(), value, gone: None };
        let other = multi_node::merge_shares(&[of("n0", Some(json!(0)))]);
        let shares = vec![of("n0", Some(other)), of("n1", Some(ask.value))];
        Some(ExchangeReply { number: ask.number, me: 1, shares, waited_s: 0.0 })
    };
    let got = among_others(&[&format!("{a}{END}"), &format!("{b}{END}")], reply, |_| {});
    let answer = &answers(&got.children[1])[0];
    assert_eq!(answer.me, 2);
    let values: Vec<Option<Value>> = answer.shares.iter().map(|it| it.value.clone()).collect();
    assert_eq!(values, [Some(json!(0)), Some(json!(1)), Some(json!(2))]);
}

#[test]
fn a_single_process_gives_its_own_value_and_gets_the_answer_as_it_is() {
    let reply = |ask: ExchangeRequest| {
        assert_eq!(ask.value, json!("mine"));
        let share = ExchangeShare { member: "n1".to_owned(), value: Some(ask.value), gone: None };
        Some(ExchangeReply { number: ask.number, me: 0, shares: vec![share], waited_s: 0.1 })
    };
    let script = format!("{}{END}", asks(0, "\"mine\"", 5.0));
    let got = among_others(&[&script], reply, |work| work.exchanges_lists = false);
    assert_eq!(answers(&got.children[0])[0].shares[0].value, Some(json!("mine")));
    assert!(got.children[0].is_complete() && got.exchange_failure.is_none());
}

#[test]
fn a_failed_exchange_ends_the_input_of_the_processes() {
    let script = format!("{}{END}", asks(0, "1", 5.0));
    let wrong = |ask: ExchangeRequest| {
        Some(ExchangeReply { number: ask.number + 1, me: 0, shares: Vec::new(), waited_s: 0.0 })
    };
    let got = among_others(&[&script], wrong, |_| {});
    assert_eq!(got.children[0].exit, Some(ChildExitReason::Failed(3)), "its input ended");
    assert_eq!(got.exchange_failure.as_deref(), Some("unrequested answer to exchange 1"));
}

#[test]
fn a_closed_upstream_only_affects_a_process_that_asks() {
    let run_scripts = |script: &str| {
        let (_, lines) = mpsc::channel(1);
        let mut send_line = |_: &str| panic!("no parent reads this");
        let work = work(&[script]);
        let (_keep, stop) = watch::channel(None);
        now(supervise(
            &work,
            ExchangePeers::Upstream { lines, send_line: &mut send_line },
            stop,
            &mut |_, _| {},
        ))
    };
    let silent = run_scripts(&format!("sleep 0.3; {END}"));
    assert!(silent.children[0].is_complete() && silent.exchange_failure.is_none(), "{silent:?}");
    let asking = run_scripts(&format!("sleep 0.3; {}{END}", asks(0, "1", 5.0)));
    assert_eq!(asking.children[0].exit, Some(ChildExitReason::Failed(3)));
    assert_eq!(asking.exchange_failure.as_deref(), Some(PARENT_GONE));
}

#[test]
fn an_interruption_ends_all_processes_and_keeps_their_output() {
    let script = format!("{END}; echo next: begun >&2; trap '' TERM INT; sleep 60 & wait");
    let work = work(&[&script]);
    let (ends, stop) = watch::channel(None);
    let mut on_step = |_: usize, doing: &str| {
        assert_eq!(doing, "begun");
        ends.send(Some("interrupted")).expect("received");
    };
    let got = now(supervise(&work, ExchangePeers::LocalOnly, stop, &mut on_step));
    assert_eq!(got.interrupted, Some("interrupted"));
    assert_eq!(got.children[0].exit, Some(ChildExitReason::Interrupted("interrupted")));
    assert_eq!(got.children[0].messages.len(), 1);
}

#[test]
fn a_missing_program_is_not_started() {
    let got = run_scripts(&["true"], |work| work.executable = PathBuf::from("/no/such/program"));
    assert_eq!(got.children[0].exit_problem().expect("not started").class.as_str(), "not-started");
}

#[test]
fn the_sampler_starts_before_and_ends_after_the_probe_and_never_blocks_it() {
    let watched = |script: &str| {
        let got = run_scripts(&[END], |work| {
            let words = vec![script.to_owned()];
            work.sampler = Some(SamplerSpec { args: words, has_begun: |line| line == "begun" });
        });
        assert!(got.children[0].is_complete());
        got.sampled.expect("it was watched")
    };
    let fine = watched("echo begun; cat; echo after");
    assert_eq!((fine.text.as_str(), fine.failure), ("begun\nafter\n", None));
    let dead = watched("echo before; exit 1");
    assert_eq!(dead.text, "before\n");
}
