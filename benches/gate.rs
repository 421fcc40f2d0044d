//! The time to read 10,000 nodes of a real Slurm controller and to drain 1,000 of them, by
//! `scontrol` and by slurmrestd, and the number of calls; and to decide on 1,000 drains and apply
//! them, including the journal.
//!
//! `ci/bench-slurm` starts the controller and names it in two variables, as for the lab tests;
//! without them nothing is measured.

mod turn;

use std::cell::Cell;
use std::hint::black_box;
use std::time::{Duration, Instant};

use control::gate::scheduler::Scheduler;
use control::gate::scontrol::ScontrolScheduler;
use control::gate::slurmrestd::SlurmrestdScheduler;
use criterion::{Criterion, criterion_group, criterion_main};
use model::id::NodeName;
use model::node_update::{NodeStateChange, NodeUpdate};
use node::exec;
use node::exec::ProcessRequest;
use readers::claims::slurm::live_nodes;

/// Drained nodes.
const DRAINED: usize = 1_000;

/// Counts the calls of `scontrol` in a file of the lab.
const COUNTING: &str = r#"echo >>/tmp/calls; exec scontrol "$@""#;

fn now<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(work)
}

fn run(lab: &str, words: &[&str]) -> String {
    let argv = std::iter::once(lab).chain(words.iter().copied()).map(str::to_owned).collect();
    let request = ProcessRequest { argv, limit: Duration::from_secs(600), capture: exec::CAPTURE };
    let (_sender, stop) = tokio::sync::watch::channel(false);
    let finished = now(exec::run(&request, stop)).expect("the lab's program");
    assert!(finished.ending.is_success(), "{words:?}: {}", finished.ending);
    String::from_utf8(finished.stdout.bytes).expect("text")
}

fn drain(reason: &str) -> NodeUpdate {
    NodeUpdate {
        state: Some(NodeStateChange::Drain { reason: reason.to_owned() }),
        ..NodeUpdate::default()
    }
}

#[expect(clippy::print_stdout, reason = "the counts are the result of a bench")]
fn gate(criterion: &mut Criterion) {
    let variable = |name| std::env::var(name).ok();
    let names = ("FABRICGATE_LAB_SLURM", "FABRICGATE_LAB_SLURMRESTD");
    let (Some(lab), Some(socket)) = (variable(names.0), variable(names.1)) else {
        println!("SKIPPED: no Slurm to measure, `ci/bench-slurm` starts one");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let token_file = folder.path().join("token");
    let token = run(&lab, &["scontrol", "token", "username=root", "lifespan=3600"]);
    std::fs::write(&token_file, token).expect("written");
    let limit = Duration::from_secs(60);
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let scontrol =
        ScontrolScheduler { argv: words(&[&lab, "scontrol"]), limit, remote_shell: Some(false) };
    let rest = SlurmrestdScheduler {
        address: format!("unix:{socket}").into(),
        token_file: Some(token_file),
        user: None,
        limit,
    };
    let ways: [(&str, &dyn Scheduler); 2] = [("scontrol", &scontrol), ("slurmrestd", &rest)];

    let all = now(scontrol.read_nodes(&[])).expect("read");
    println!("{} nodes, {} troubles", all.nodes.len(), all.troubles.len());
    // Every seventh, so that they do not fold into one range.
    let some: Vec<NodeName> = all.nodes.keys().step_by(7).take(DRAINED).cloned().collect();
    let one = &some[..1];

    let argv = words(&[&lab, "sh", "-c", COUNTING, "scontrol"]);
    let counted = ScontrolScheduler { argv, limit, remote_shell: Some(false) };
    run(&lab, &["rm", "-f", "/tmp/calls"]);
    now(counted.update_nodes(&some, &drain("fabricgate:x:r1 e1"))).expect("drained");
    let calls = run(&lab, &["wc", "-l", "/tmp/calls"]);
    let read = now(rest.read_nodes(&some)).expect("read");
    let drained = read.nodes.values().filter(|it| it.has_state("DRAIN")).count();
    let bytes: usize =
        counted.command_lines(&some, &drain("x")).iter().flatten().map(|word| word.len() + 1).sum();
    println!(
        "{drained} drained; calls of scontrol, with its ping: {calls}; {bytes} bytes of words"
    );

    beside(&lab, &some);
    whole(&lab, limit);

    let text = run(&lab, &["scontrol", "--all", "show", "node", "--json"]);
    println!("{} bytes of JSON", text.len());

    let mut group = criterion.benchmark_group("gate");
    group.sample_size(10).measurement_time(Duration::from_secs(10));
    group.bench_function("read the text of all nodes", |bencher| {
        bencher.iter(|| live_nodes::read("f", black_box(&text)));
    });
    group.bench_function("scontrol alone: show node --json", |bencher| {
        bencher.iter(|| run(&lab, &["scontrol", "--all", "show", "node", "--json"]));
    });
    for (name, way) in ways {
        group.bench_function(format!("{name}: read all"), |bencher| {
            bencher.iter(|| now(way.read_nodes(&[])).expect("read"));
        });
        group.bench_function(format!("{name}: read {DRAINED} by name"), |bencher| {
            bencher.iter(|| now(way.read_nodes(&some)).expect("read"));
        });
        group.bench_function(format!("{name}: read one by name"), |bencher| {
            bencher.iter(|| now(way.read_nodes(one)).expect("read"));
        });
        // A new reason each time: Slurm does not write an unchanged one.
        let turn = Cell::new(0u32);
        let next = || {
            turn.set(turn.get() + 1);
            drain(&format!("fabricgate:x:{name} e{}", turn.get()))
        };
        group.bench_function(format!("{name}: drain {DRAINED}"), |bencher| {
            bencher.iter(|| now(way.update_nodes(&some, &next())).expect("drained"));
        });
        group.bench_function(format!("{name}: drain one"), |bencher| {
            bencher.iter(|| now(way.update_nodes(one, &next())).expect("drained"));
        });
    }
    group.finish();
}

/// The same drains as a script would make them, one call for each node, compared with one call
/// for all; both inside the lab, so that neither includes the way into it.
#[expect(clippy::print_stdout, reason = "the times are the result of a bench")]
fn beside(lab: &str, nodes: &[NodeName]) {
    const EACH: &str =
        r#"for node; do scontrol update NodeName="$node" State=DRAIN Reason=each || exit; done"#;
    const ALL: &str = r#"scontrol update NodeName="$1" State=DRAIN Reason=all"#;
    let names: Vec<&str> = nodes.iter().map(NodeName::as_str).collect();
    let list = names.join(",");
    let timed = |script: &str, words: &[&str]| {
        let began = Instant::now();
        run(lab, &[&["sh", "-c", script, "sh"], words].concat());
        began.elapsed().as_secs_f64()
    };
    let (each, all) = (timed(EACH, &names), timed(ALL, &[&list]));
    println!("{} drains, one call each: {each:.2} s; one call for all: {all:.3} s", nodes.len());
}

/// A whole turn that drains 1,000 nodes.
#[expect(clippy::print_stdout, reason = "the counts are the result of a bench")]
fn whole(lab: &str, limit: Duration) {
    // Powered down nodes cannot be drained; nodes that another agent runs can.
    let range = format!("ext[0001-{DRAINED:04}]");
    let named = format!("NodeName={range}");
    run(lab, &["scontrol", "create", &named, "CPUs=4", "RealMemory=1000", "State=EXTERNAL"]);
    let argv: Vec<String> =
        [lab, "sh", "-c", COUNTING, "scontrol"].map(str::to_owned).into_iter().collect();
    let counted = ScontrolScheduler { argv, limit, remote_shell: Some(false) };
    let names: Vec<NodeName> = (1..=DRAINED).map(|it| format!("ext{it:04}").into()).collect();
    let timed = turn::timed(&counted, &names, || {
        run(lab, &["rm", "-f", "/tmp/calls"]);
    });
    let calls = run(lab, &["wc", "-l", "/tmp/calls"]);
    println!(
        "{} nodes read in {:.2?}, {} drains decided in {:.2?}, {} done in {:.2?} (3 s of it \
         waiting until they are kept) with these calls of scontrol: {calls}",
        timed.nodes, timed.read, timed.planned, timed.decided, timed.done, timed.carried,
    );
}

criterion_group!(benches, gate);
criterion_main!(benches);
