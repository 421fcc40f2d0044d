//! Nodes that do not answer: all of them, or some.

use super::place::Place;

/// The stand-in for ssh to an unknown name.
const LOST: &str =
    "echo ssh: Could not resolve hostname $0: Name or service not known >&2; exit 255";

/// Nodes n1 to n4 that are reached by this shell script, the node in `$0`.
fn cluster(script: &str) -> Place {
    let worker = env!("CARGO_BIN_EXE_fabricgate");
    let place = Place::with(
        "",
        &format!(
            "claims = \"claims.toml\"\nrun_dir = \"runs\"\n[launcher]\nkind = \"command\"\n\
             template = [\"sh\", \"-c\", '''{script}''', \"{{node}}\"]\nworker = \"{worker}\"\n"
        ),
    );
    let claims = "[[domain]]\nname = \"rack\"\nnodes = \"n[1-4]\"\nplatform = \"gb200-nvl72\"\n\
                  gpus_per_node = 4\n";
    place.put("claims.toml", claims);
    place
}

#[test]
fn a_sweep_that_reaches_no_node_ends_with_5_and_one_sentence() {
    let place = cluster(LOST);
    for command in [
        &["audit"][..],
        &["audit", "--json"],
        &["admit"],
        &["recertify", "--all"],
        &["recertify", "n2"],
        &["burn-in"],
        &["burn-in", "--rounds", "2", "--soak-minutes", "0"],
    ] {
        let output = place.run(command).expect(5);
        assert_eq!(output.stdout, "", "{command:?}");
        let sentences: Vec<&str> =
            output.stderr.lines().filter(|line| line.contains("can be reached")).collect();
        let [sentences] = sentences.as_slice() else { panic!("{command:?}: {}", output.stderr) };
        assert!(
            sentences.contains("0 of ") && sentences.contains("check [launcher]"),
            "{sentences}"
        );
        let reasons = output.stderr.matches("Could not resolve hostname").count();
        assert_eq!(reasons, 1, "{command:?}: {}", output.stderr);
        assert!(!output.stderr.contains("stage "), "{command:?}: {}", output.stderr);
    }
}

#[test]
fn one_reason_of_several_nodes_is_reported_once_with_a_host_list() {
    let script = format!("if [ $0 = n1 ]; then exec \"$@\"; fi; {LOST}");
    let place = cluster(&script);
    let output = place.run(&["audit", "--html", "a.html"]).expect(5);
    let count = |text: &str| text.matches("Could not resolve").count();
    // Once when workers are started; not at each step.
    assert_eq!(count(&output.stderr), 1, "{}", output.stderr);
    assert!(output.stderr.contains("n[2-4]: "), "{}", output.stderr);
    let page = std::fs::read_to_string(place.path().join("a.html")).expect("a page");
    // Only the unknowns of the page: its table of nodes has a row each.
    let (_, unknown) = page.split_once("id=\"unknown\"").expect("what is not known");
    let (unknown, _) = unknown.split_once("</section>").expect("its end");
    for (form, text) in [("terminal", output.stdout.as_str()), ("page", unknown)] {
        // For each of three nodes by itself and as the far end of a pair; never once a step.
        assert!((1..=6).contains(&count(text)), "{form}: {}:\n{text}", count(text));
        assert!(text.contains("n[2-4]"), "{form}:\n{text}");
    }
}

#[test]
fn a_doctor_of_nodes_that_do_not_answer_ends_with_5() {
    let place = cluster(LOST);
    let output = place.run(&["doctor", "n[1-2]"]).expect(5);
    assert!(output.stdout.contains("n1: cannot be checked"), "{}", output.stdout);
}

#[test]
fn a_repair_names_its_nodes_or_all_of_them() {
    let place = cluster(LOST);
    let output = place.run(&["recertify"]).expect(2);
    assert!(output.stderr.contains("--all") && output.stderr.contains("NODE"), "{}", output.stderr);
    place.run(&["recertify", "--all", "n1"]).expect(2);
    assert!(!place.path().join("runs").exists());
}

#[test]
fn a_mistyped_scenario_is_reported_with_the_existing_ones() {
    let place = cluster(LOST);
    for (name, hint) in [("rack-lost-lnk", "did you mean `rack-lost-link`?"), ("node0001", "")] {
        let output = place.run(&["audit", "--sim", name]).expect(2);
        let contains = |text: &str| assert!(output.stderr.contains(text), "{}", output.stderr);
        contains(&format!("--sim {name}: no such scenario"));
        contains(hint);
        contains("rack-lost-link, two-racks-healthy, rail-half-rate, split-clique");
        assert!(!output.stderr.contains(&place.path().display().to_string()), "{}", output.stderr);
    }
}
