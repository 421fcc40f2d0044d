//! The standing gate on a real Slurm, by polling: an uncertified node is admitted and certified,
//! and one that is drained by hand is left alone.

use std::fs;

use super::gate::expect;
use super::hold::{HEALTHY, fabricgate, furnish, site};
use super::*;

/// Two nodes suffice: each further one adds processes.
const WATCH: &str = "[watch]\nnodes = 2\nmin_nodes = 2\nbackoff = { first_s = 1, most_s = 2 }\n";

#[test]
fn an_uncertified_node_is_admitted_and_an_operators_drain_is_not() {
    let Some(lab) = lab() else { return };
    furnish(&lab, HEALTHY);
    let site = site(&lab, "", WATCH);
    // It would be measured first, since its name is the first.
    lab.run(&["scontrol", "update", "NodeName=node0001", "State=DRAIN", "Reason=fan, ticket 7"]);

    // A dry run reports this, and starts nothing.
    let dry = fabricgate(&site, &["watch", "--once"]);
    expect(&dry, 0);
    assert!(dry.stderr.contains("due: admit of node[0002-0003] in block01"), "{}", dry.stderr);
    assert!(dry.stderr.contains("fan, ticket 7"), "{}", dry.stderr);
    assert_eq!(lab.holds(), "");
    assert!(!site.path().join("gate").exists(), "a dry run writes nothing");

    let output = fabricgate(&site, &["watch", "--once", "--apply"]);
    expect(&output, 0);
    for node in ["node0002", "node0003"] {
        assert!(lab.features(node).contains("fabric_verified"), "{node}: {}", output.stderr);
        let path = site.path().join(format!("gate/certificates/{node}.json"));
        assert!(fs::read_to_string(path).expect("a certificate").contains("\"admit\""));
    }
    assert_eq!(lab.node("node0001").1, "fan, ticket 7");
    assert_eq!(lab.holds(), "", "nothing is held any more");

    // The next two, and not those again.
    let output = fabricgate(&site, &["watch", "--once", "--apply"]);
    expect(&output, 0);
    assert!(output.stderr.contains("admit of node[0004-0005]"), "{}", output.stderr);

    // Slurm forgets features at a reconfigure: they are written again without measuring.
    lab.run(&["scontrol", "reconfigure"]);
    lab.wait_for("features are forgotten", || {
        !lab.features("node0002").contains("fabric_verified")
    });
    let all_off = WATCH.replacen("nodes = 2", "nodes = 2\nprofiles = { missing = \"off\" }", 1);
    let config = fs::read_to_string(site.path().join("fabricgate.toml")).expect("read");
    fs::write(site.path().join("fabricgate.toml"), config.replace(WATCH, &all_off))
        .expect("written");
    let output = fabricgate(&site, &["watch", "--once", "--apply"]);
    expect(&output, 0);
    assert!(output.stderr.contains("marks of node[0002-0005]"), "{}", output.stderr);
    assert!(lab.features("node0002").contains("fabric_verified"), "{}", output.stderr);

    lab.run(&["scontrol", "update", "NodeName=node0001", "State=RESUME"]);
    lab.forget();
}
