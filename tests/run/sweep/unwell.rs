//! Workers and tools that misbehave: that ignore termination, are killed, are not workers, or
//! cannot be reached.

use super::*;

#[test]
fn an_interrupt_while_workers_are_started_ends_the_run_immediately() {
    let launch = format!("echo $1 >> \"$SWEEP_PLACE/called\"\n[ $1 = n1 ] && sleep 600\n{LAUNCH}");
    let place = Place::fakes("n[1-3]", &launch, 500, &[("first", "cat output")]);
    let child = place.start(&["audit", "--config", "fabricgate.toml"]);
    wait_for("the calls", || (count(place.dir.path(), "called") == 3).then_some(()));
    interrupt(&child);
    let output = ended(child);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    let folder = place.folder();
    assert_eq!((state(&folder).as_str(), count(&folder, "results.jsonl")), ("partial", 0));
    let document = verdicts(&folder);
    assert_eq!(unknown(&document, "first on n2"), "not run: the run ended before");
    assert!(nodes(&document).values().all(|(outcome, _)| outcome == "unknown"));
    place.nothing_is_left_running();
}

/// A tool that ignores termination signals on node n2, and prints elsewhere.
const STUBBORN: &str = "[ $NODE = n2 ] && { trap '' TERM INT; touch begun; \
    while :; do sleep 1; done; }\ncat output";

#[test]
fn a_second_interrupt_does_not_wait_for_tools_that_ignore_the_first() {
    let place = Place::fakes("n[1-3]", LAUNCH, 60, &[("stubborn", STUBBORN)]);
    let child = place.start(&["audit", "--config", "fabricgate.toml"]);
    let folder = wait_for("the tools", || {
        let folder = place.folder_in("runs")?;
        (place.path("begun").exists() && count(&folder, "results.jsonl") == 2).then_some(folder)
    });

    // No other process may write into it meanwhile, nor change it.
    let before = fs::read(folder.join("run.json")).expect("there");
    let shown = folder.display().to_string();
    let other = place.configured(&["audit", "--resume", &shown]);
    assert_eq!(other.status.code(), Some(5), "{}", stderr(&other));
    assert!(stderr(&other).contains("another fabricgate is at work"), "{}", stderr(&other));
    assert_eq!(fs::read(folder.join("run.json")).expect("there"), before);

    interrupt(&child);
    // Two simultaneous signals would count as one.
    std::thread::sleep(Duration::from_millis(500));
    interrupt(&child);
    let output = ended(child);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(stderr(&output).contains("killing running processes"), "{}", stderr(&output));
    assert_eq!(state(&folder), "partial");
    place.nothing_is_left_running();
    assert_eq!(place.run(&["report", &shown]).status.code(), Some(0));
    let document = verdicts(&folder);
    let why = unknown(&document, "stubborn on n2");
    assert!(why == "not run: the run ended before" || why == "the run was interrupted", "{why}");
}

/// A tool that kills the worker that started it, once, on node n2.
const MURDEROUS: &str = "if [ $NODE = n2 ] && [ ! -e killed ]; then\n touch killed; p=$PPID\n \
    until tr '\\0' ' ' < /proc/$p/cmdline | grep -q 'node worker'; do\n  \
    p=$(sed 's/.*) . \\([0-9]*\\) .*/\\1/' /proc/$p/stat)\n done\n kill -9 $p; sleep 60\nfi\n\
    cat output";

#[test]
fn a_worker_that_is_killed_is_started_once_more_and_the_sweep_goes_on() {
    let probes = [("first", MURDEROUS), ("second", "cat output")];
    let place = Place::fakes("n[1-3]", LAUNCH, 60, &probes);
    let output = place.configured(&["audit"]);
    let folder = place.folder();
    let document = verdicts(&folder);
    let why = unknown(&document, "first on n2");
    assert!(why.starts_with("the worker ended"), "{why}");
    let unknown = document["unknown"].as_array().expect("a list");
    for what in ["second on n2", "first on n1", "second on n3"] {
        assert!(unknown.iter().all(|u| u["what"] != what), "{what} came back: {unknown:#?}");
    }
    assert_eq!(nodes(&document)["n2"].0, "unknown");
    assert_eq!(state(&folder), "complete", "{}", stderr(&output));
    let mut started: Vec<String> = fs::read_to_string(place.path("started"))
        .expect("noted")
        .lines()
        .map(str::to_owned)
        .collect();
    started.sort();
    assert_eq!(started, ["n1", "n2", "n2", "n3"]);
    place.nothing_is_left_running();
}

/// Workers of many kinds: only those of n2 and n5 work correctly.
const ODD_WORKERS: &str = r#"node=$1; shift; cd "$SWEEP_PLACE"
case $node in
 n1) echo '{"type":"hello","protocol":99,"version":"9.9.9","news":[]}'; sleep 60 ;;
 n2) echo 'Welcome to n2.'; echo 'Do not {"type": "feed"} the fans.' ;;
 n3) yes '%%% 0xdeadbeef {' ;;
 n4) sleep 60 ;;
 n6) echo 'fabricgate: command not found' >&2; exit 127 ;;
 n7) head -c 3000000 /dev/zero; sleep 60 ;;
esac
NODE=$node exec "$@""#;

#[test]
fn programs_that_are_not_workers_leave_their_node_unknown_and_stop_no_other() {
    let place = Place::fakes("n[1-7]", ODD_WORKERS, 10, &[("first", "cat output")]);
    let output = place.configured(&["audit"]);
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    let document = verdicts(&place.folder());
    let has_part = |node: &str, part: &str| {
        let why = unknown(&document, &format!("first on {node}"));
        assert!(why.starts_with("not reached: ") && why.contains(part), "{node}: {why}");
        assert_eq!(nodes(&document)[node].0, "unknown");
    };
    has_part("n1", "fabricgate 9.9.9 uses protocol 99");
    has_part("n3", "no greeting of a worker in the first 200 lines");
    has_part("n4", "no worker answered within 10 s");
    has_part(
        "n6",
        "exit code 127: the tool was not found; last line on stderr: fabricgate: command",
    );
    has_part("n7", "a line of more than");
    let unknown = document["unknown"].as_array().expect("a list");
    for what in ["first on n2", "first on n5"] {
        assert!(unknown.iter().all(|u| u["what"] != what), "{what} came back: {unknown:#?}");
    }
    place.nothing_is_left_running();
}

#[test]
fn a_node_that_was_not_reached_is_tried_again_when_the_run_is_resumed() {
    let launch = format!("[ $1 = n1 ] && [ ! -e \"$SWEEP_PLACE/up\" ] && exit 255\n{LAUNCH}");
    let slow = "[ $NODE = n3 ] && [ ! -e up ] && { touch begun; sleep 100; }\ncat output";
    let place = Place::fakes("n[1-3]", &launch, 60, &[("slow", slow)]);
    let child = place.start(&["audit", "--config", "fabricgate.toml"]);
    let folder = wait_for("the tools", || {
        let folder = place.folder_in("runs")?;
        (place.path("begun").exists() && count(&folder, "results.jsonl") == 2).then_some(folder)
    });
    interrupt(&child);
    let output = ended(child);
    assert_eq!(output.status.code(), Some(5), "n1 is out of reach: {}", stderr(&output));
    assert!(unknown(&verdicts(&folder), "slow on n1").contains("exit code 255"));
    assert_eq!(unknown(&verdicts(&folder), "slow on n3"), "the run was interrupted");
    place.put("up", "");
    place.configured(&["audit", "--resume", &folder.display().to_string()]);
    let document = verdicts(&folder);
    let unknown = document["unknown"].as_array().expect("a list");
    let missing = |u: &&Value| u["what"].as_str().is_some_and(|what| what.starts_with("slow on"));
    assert_eq!(unknown.iter().find(missing), None);
    assert_eq!(state(&folder), "complete");
    let of_n2 = lines(&folder, "results.jsonl").iter().filter(|l| l["nodes"][0] == "n2").count();
    assert_eq!(of_n2, 1, "completed readings are not repeated");
}

/// Boxes of eight GPUs, one of which reports an error of its GPUs in every test.
const BOXES: &str = "title = \"boxes\"\nseed = 7\n[noise]\nsigma = 0.005\n\
    [[domain]]\nnodes = \"n[1-4]\"\nplatform = \"hgx-h100\"\nper_node = true\n\
    [[fault]]\nkind = \"tool-error\"\nnode = \"n2\"\n";

#[test]
fn an_error_on_standard_error_fails_its_node_live_and_replayed() {
    let place = Place::new();
    place.put("boxes.toml", BOXES);
    place.put(
        "fabricgate.toml",
        "run_dir = \"runs\"\n[launcher]\nkind = \"sim\"\nscenario = \"boxes.toml\"\n\
         [probes]\nrun = [\"nvbandwidth\"]\n[confirm]\nenabled = false\n",
    );
    let output = place.configured(&["audit"]);
    let folder = place.folder();
    let fails = |document: &Value, how: &str| {
        let all = nodes(document);
        assert_eq!(all["n2"].0, "failed", "{how}: {all:?}\n{}", stderr(&output));
        assert!(["n1", "n3", "n4"].iter().all(|node| all[*node].0 == "pass"), "{how}: {all:?}");
        let findings = document["findings"].as_array().expect("a list");
        assert!(findings.iter().all(|f| f["class"] == "tool-error"), "{how}: {findings:#?}");
    };
    fails(&verdicts(&folder), "live");
    let shown = folder.display().to_string();
    let replayed = place.run(&["replay", "--json", &shown]);
    let document: Value = serde_json::from_slice(&replayed.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", stderr(&replayed)));
    let document = document.get("verdicts").cloned().unwrap_or(document);
    fails(&document, "replay");
}

/// Under DRA the host has no IMEX daemon, and the tool may wait for one for ever
/// (kubernetes-sigs/dra-driver-nvidia-gpu#1417), regardless of its earlier output.
#[test]
fn an_imex_tool_that_hangs_is_unknown_and_never_failed() {
    const LISTED: &str = "1/15/2026 08:00:00.250\nNodes:\n\
        Node #0   - n1              - UNAVAILABLE\n\
        Node #1   - n2              - UNAVAILABLE\n\
        Node #2   - n3              - UNAVAILABLE\n\n";
    let down = format!("{LISTED}Domain State: DOWN\n");
    let document = r#"{"nodes": {"0": {"status": "UNAVAILABLE", "host": "n1", "connections": {}},
        "1": {"status": "UNAVAILABLE", "host": "n2", "connections": {}}},
        "timestamp": "1/15/2026 08:00:00.250", "status": "DOWN"}"#;
    let launch = format!("PATH=\"$SWEEP_PLACE/bin:$PATH\"; export PATH\n{LAUNCH}");
    // The same output from a tool that ends is evidence, or this test could not fail.
    for (printed, hangs) in
        [("", true), (LISTED, true), (&down, true), (document, true), (&down, false)]
    {
        let place = Place::fakes("n[1-3]", &launch, 60, &[("nvidia-imex", "")]);
        place.put("printed", printed);
        let wait = if hangs { "sleep 300" } else { "" };
        fs::create_dir(place.path("bin")).expect("made");
        place.script("bin/nvidia-imex-ctl", &format!("cat \"$SWEEP_PLACE/printed\"\n{wait}"));
        place.put(
            "probes/nvidia-imex.toml",
            "name = \"nvidia-imex\"\ntitle = \"t\"\nparser = \"nvidia-imex-ctl\"\n\
             argv = [\"nvidia-imex-ctl\", \"-N\"]\nscope = \"node\"\nstage = 0\ncost_s = 0.1\n\
             timeout_s = 2\ndisturbs = \"nothing\"\n",
        );
        let output = place.configured(&["audit"]);
        let verdicts_document = verdicts(&place.folder());
        let findings = verdicts_document["findings"].as_array().expect("a list");
        if !hangs {
            assert!(!findings.is_empty(), "{verdicts_document:#}");
            continue;
        }
        assert_eq!(findings.len(), 0, "{printed:?}: {findings:#?}");
        assert_eq!(output.status.code(), Some(4), "{printed:?}: {}", stderr(&output));
        for (node, (outcome, reason)) in nodes(&verdicts_document) {
            assert_eq!(outcome, "unknown", "{printed:?}: {node}: {reason}");
            let why = unknown(&verdicts_document, &format!("nvidia-imex on {node}"));
            assert_eq!(why, "exceeded its time limit and was killed", "{printed:?}");
        }
        place.nothing_is_left_running();
    }
}
