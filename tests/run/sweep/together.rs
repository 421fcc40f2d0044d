//! Probes that every node of a step takes part in, and replacements of a missing tool: members
//! that exchange data, die, send nothing, or are out of reach.

use super::*;

/// Nodes that a member recognises by its own name.
const NODES: &str = "n[1-3]";

/// Requests exchange number $1 with its own name, waits $2 seconds, and prints the answer.
const ASKS: &str = "ask() {\n\
    printf 'exchange {\"number\":%s,\"value\":\"%s\",\"within_s\":%s}\\n' $1 $NODE $2\n\
    read -r answer; echo \"$NODE heard $answer\"; }\n";

/// A folder with one probe `joint` that all nodes of a domain run.
fn joint(launch: &str, script: &str) -> Place {
    let place = Place::fakes(NODES, launch, 30, &[("joint", &format!("{ASKS}{script}"))]);
    place.put("probes/joint.toml", &probe(&place, "joint", "domain", "on_all_nodes = true\n"));
    place
}

/// The file of a probe whose script gets its node by argument and variable.
fn probe(place: &Place, script: &str, scope: &str, rest: &str) -> String {
    let script = place.path(script).display().to_string();
    format!(
        "name = \"joint\"\ntitle = \"joint\"\nparser = \"nvbandwidth\"\n\
         argv = [{script:?}, \"{{node}}\"]\nscope = \"{scope}\"\nstage = 2\ncost_s = 0.1\n\
         timeout_s = 120\ndisturbs = \"gpus\"\n{rest}"
    )
}

fn result(folder: &Path) -> Value {
    let mut results = lines(folder, "results.jsonl");
    assert_eq!(results.len(), 1, "{results:#?}");
    results.remove(0)
}

fn file(folder: &Path, result: &Value, which: &str) -> String {
    let name = result[which].as_str().unwrap_or_else(|| panic!("no {which}: {result}"));
    fs::read_to_string(folder.join(name)).expect("there")
}

/// The answer of each node, in the order of the output.
fn received(text: &str) -> Vec<(String, Value)> {
    let split = text.lines().filter_map(|line| line.split_once(" heard "));
    split
        .map(|(node, answer)| (node.to_owned(), serde_json::from_str(answer).expect(answer)))
        .collect()
}

/// Values by member; a gone member has none.
fn given(answer: &Value) -> Vec<Option<&str>> {
    let shares = answer["shares"].as_array().expect("shares");
    shares.iter().map(|share| share["value"].as_str()).collect()
}

#[test]
fn all_nodes_run_the_command_and_receive_the_same_values() {
    let script = "echo begun; ask 0 60; ask 1 60; echo oops >&2; [ $1 = $NODE ] && printf end";
    let place = joint(LAUNCH, script);
    place.configured(&["audit"]);
    let folder = place.folder();
    let result = result(&folder);
    assert_eq!(result["ending"], serde_json::json!({"how": "exited", "code": 0}), "{result}");
    assert_eq!(result["argv"][1], "n1", "the command of the first");
    let text = file(&folder, &result, "stdout");
    let all = received(&text);
    let order: Vec<&str> = all.iter().map(|(node, _)| node.as_str()).collect();
    assert_eq!(order, ["n1", "n1", "n2", "n2", "n3", "n3"]);
    for (at, (_, answer)) in all.iter().enumerate() {
        assert_eq!(
            (answer["number"].as_u64(), answer["me"].as_u64()),
            (Some(at as u64 % 2), Some(at as u64 / 2))
        );
        assert_eq!(given(answer), [Some("n1"), Some("n2"), Some("n3")]);
    }
    assert_eq!(text.matches("begun\n").count(), 3);
    assert_eq!(text.matches("end\n").count(), 3, "every document ends with its line");
    assert!(!text.contains("exchange "), "exchanged values are not stored: {text}");
    assert_eq!(file(&folder, &result, "stderr"), "n1: oops\nn2: oops\nn3: oops\n");
    place.nothing_is_left_running();
}

#[test]
fn a_member_that_dies_is_gone_with_the_reason_and_the_others_go_on() {
    for (dies, reason) in [
        ("echo why >&2; exit 7", "exit code 7; last line on stderr: why"),
        ("kill -9 $$", "killed by signal 9"),
        ("kill -9 $PPID; sleep 60", "the worker ended"),
        ("exit 0", "ended"),
    ] {
        let place = joint(LAUNCH, &format!("[ $NODE = n2 ] && {{ {dies}; }}\nask 0 60"));
        place.configured(&["audit"]);
        let folder = place.folder();
        let result = result(&folder);
        let text = file(&folder, &result, "stdout");
        let all = received(&text);
        assert_eq!(all.len(), 2, "{dies}: {text}");
        for (_, answer) in all {
            assert_eq!(given(&answer), [Some("n1"), None, Some("n3")]);
            let gone = answer["shares"][1]["gone"].as_str().expect("a reason");
            assert!(gone.contains(reason), "{dies}: {gone}");
        }
        if dies == "exit 0" {
            assert_eq!(result["ending"]["how"], "exited", "{result}");
        } else {
            assert_eq!(result["ending"]["how"], "partly", "{dies}: {result}");
            let why = result["ending"]["why"].as_str().expect("a reason");
            assert!(why.starts_with("n2: ") && why.contains(reason), "{dies}: {why}");
        }
        place.nothing_is_left_running();
    }
}

#[test]
fn a_silent_member_is_ended_and_no_longer_awaited() {
    // The member itself, or the worker that should end it.
    for silent in ["sleep 600", "kill -STOP $PPID; sleep 600"] {
        let place =
            joint(LAUNCH, &format!("[ $NODE = n2 ] && {{ {silent}; }}\nask 0 0.5; ask 1 60"));
        place.configured(&["audit"]);
        let folder = place.folder();
        let result = result(&folder);
        let text = file(&folder, &result, "stdout");
        assert_eq!(received(&text).len(), 4, "{silent}: {text}");
        let why = result["ending"]["why"].as_str().expect("a reason");
        assert!(why.starts_with("n2: did not join exchange 0 within "), "{silent}: {why}");
        assert!(!why.contains("more"), "it is blamed once: {why}");
        place.nothing_is_left_running();
    }
}

#[test]
fn only_the_member_with_a_wrong_request_is_ended() {
    let wrong = "[ $NODE = n2 ] && { ask 7 60; sleep 600; }\nask 0 60";
    let place = joint(LAUNCH, wrong);
    place.configured(&["audit"]);
    let folder = place.folder();
    let result = result(&folder);
    assert_eq!(received(&file(&folder, &result, "stdout")).len(), 2);
    let why = result["ending"]["why"].as_str().expect("a reason");
    assert_eq!(why, "n2: asked for exchange 7, but 0 is the next");
    place.nothing_is_left_running();
}

#[test]
fn a_node_out_of_reach_is_missed_by_a_domain_and_leaves_no_pair() {
    let launch = format!("[ $1 = n2 ] && {{ echo no way >&2; exit 9; }}\n{LAUNCH}");
    let place = joint(&launch, "ask 0 60");
    let output = place.configured(&["audit"]);
    let folder = place.folder();
    let result = result(&folder);
    let all = received(&file(&folder, &result, "stdout"));
    assert_eq!(all.len(), 2, "{}", stderr(&output));
    assert_eq!(given(&all[0].1), [Some("n1"), None, Some("n3")]);
    let why = result["ending"]["why"].as_str().expect("a reason");
    assert!(why.starts_with("n2 not reached: ") && why.contains("no way"), "{why}");

    let place = joint(&launch, "touch $NODE-ran; ask 0 60");
    place.put("probes/joint.toml", &probe(&place, "joint", "pair", "on_all_nodes = true\n"));
    place.configured(&["audit"]);
    for result in lines(&place.folder(), "results.jsonl") {
        let both = result["nodes"] == serde_json::json!(["n1", "n3"])
            || result["nodes"] == serde_json::json!(["n3", "n1"]);
        if both {
            assert_eq!(result["ending"]["how"], "exited", "{result}");
        } else {
            assert_eq!(result["ending"]["how"], "not_started", "{result}");
            let why = result["ending"]["why"].as_str().expect("a reason");
            assert!(why.starts_with("n2 not reached"), "{why}");
        }
    }
    place.nothing_is_left_running();
}

#[test]
fn an_interrupt_ends_all_members_and_the_reading_is_taken_again() {
    // The last of them starts only when permitted.
    let script =
        "[ $NODE = n3 ] && while [ ! -e may ]; do touch waits; sleep 0.05; done\nask 0 600";
    let place = joint(LAUNCH, script);
    let child = place.start(&["audit", "--config", "fabricgate.toml"]);
    wait_for("the members", || place.path("waits").exists().then_some(()));
    interrupt(&child);
    let output = ended(child);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    let folder = place.folder();
    assert_eq!(result(&folder)["ending"]["how"], "interrupted");
    place.nothing_is_left_running();
    place.put("may", "");
    let shown = folder.display().to_string();
    place.configured(&["audit", "--resume", &shown]);
    let last = lines(&folder, "results.jsonl").pop().expect("a result");
    assert_eq!(last["ending"]["how"], "exited", "{last}");
    assert_eq!(received(&file(&folder, &last, "stdout")).len(), 3);
}

/// A probe whose tool is missing in some way on n2, with its own script as the replacement.
fn without_tool(tool: &str, rest: &str) -> Place {
    let probes = [("joint", "echo ran >> tool-$NODE; cat output"), ("own", "cat output")];
    let place = Place::fakes(NODES, LAUNCH, 30, &probes);
    let own = place.path("own").display().to_string();
    place.put(
        "probes/joint.toml",
        &format!(
            "name = \"joint\"\ntitle = \"joint\"\nparser = \"nvbandwidth\"\nargv = [{tool}]\n\
             scope = \"node\"\nstage = 1\ncost_s = 0.1\ntimeout_s = 60\ndisturbs = \"gpus\"\n\
             [fallback]\nparser = \"nvbandwidth\"\nargv = [{own:?}, \"{{node}}\"]\n{rest}"
        ),
    );
    let config = fs::read_to_string(place.path("fabricgate.toml")).expect("there");
    let config = config.replace("\"joint\", \"own\"", "\"joint\"");
    place.put("fabricgate.toml", &config.replace("most_readings = 1", "readings = 2"));
    place
}

#[test]
fn a_missing_tool_is_searched_for_once_and_replaced() {
    // Missing for the worker, and for a program that should have started it.
    for tool in ["\"no-such-tool\"", "\"env\", \"A=1\", \"no-such-tool\""] {
        let place = without_tool(tool, "");
        let output = place.configured(&["audit"]);
        let message = stderr(&output);
        assert_eq!(message.matches("the built-in probe runs instead").count(), 1, "{message}");
        let folder = place.folder();
        let results = lines(&folder, "results.jsonl");
        assert_eq!(results.len(), 6, "{results:#?}");
        for result in &results {
            assert_eq!(result["ending"]["how"], "exited", "{result}");
            let argv = result["argv"].as_array().expect("words");
            assert!(argv[0].as_str().is_some_and(|word| word.ends_with("/own")), "{argv:?}");
            assert_eq!(argv[1], result["nodes"][0]);
        }
        let verdicts = verdicts(&folder);
        let unknown = verdicts["unknown"].as_array().expect("a list");
        assert!(unknown.iter().all(|it| !it["what"].to_string().contains("joint")), "{unknown:#?}");
        let shown = folder.display().to_string();
        let replayed = place.run(&["replay", &shown]);
        assert!(stderr(&replayed).contains("the verdicts are unchanged"), "{}", stderr(&replayed));
    }
}

#[test]
fn a_tool_that_is_there_is_used_unless_a_person_wants_none() {
    let tool = "\"./joint\"";
    let place = without_tool(tool, "");
    place.configured(&["audit"]);
    let results = lines(&place.folder(), "results.jsonl");
    assert!(!results.is_empty());
    for result in results {
        assert_eq!(result["argv"][0], "./joint");
    }
    assert!(place.path("tool-n1").exists());
    let place = without_tool(tool, "");
    let output = place.configured(&["audit", "--own-probes"]);
    let results = lines(&place.folder(), "results.jsonl");
    assert!(!results.is_empty());
    for result in results {
        assert!(result["argv"][0].as_str().is_some_and(|it| it.ends_with("/own")), "{result}");
    }
    assert!(!place.path("tool-n1").exists(), "no node searched for it");
    assert!(
        !stderr(&output).contains("measured by fabricgate itself"),
        "the replacement was requested"
    );
}

#[test]
fn in_place_of_a_tool_all_nodes_may_run_something_together() {
    let place = joint(LAUNCH, "ask 0 60");
    let script = place.path("joint").display().to_string();
    let rest = format!(
        "[fallback]\nparser = \"nvbandwidth\"\nargv = [{script:?}, \"{{node}}\"]\ntogether = true\n"
    );
    // mpirun's message where the tool is missing on a node.
    place.script(
        "mpi",
        "echo 'mpirun was unable to find the specified executable file, and therefore' >&2\n\
         echo 'did not launch the job.' >&2\necho 'Node: n3' >&2; exit 134",
    );
    place.put("probes/joint.toml", &probe(&place, "mpi", "domain", &rest));
    let output = place.configured(&["audit"]);
    let folder = place.folder();
    let result = result(&folder);
    assert_eq!(result["ending"]["how"], "exited", "{result}");
    assert_eq!(received(&file(&folder, &result, "stdout")).len(), 3);
    let stderr = stderr(&output);
    assert!(stderr.contains("joint on n1 and 2 others: mpirun was unable to find"), "{stderr}");
}
