//! The standing gate on a real Slurm, by polling: a node that nobody certified is
//! admitted and certified, one that is drained by hand is left alone.

use std::fs;

use super::gate::expect;
use super::hold::{HEALTHY, fabricgate, furnish, site};
use super::*;

/// Two nodes are enough: each more is some processes more.
const WATCH: &str = "[watch]\nnodes = 2\nmin_nodes = 2\nbackoff = { first_s = 1, most_s = 2 }\n";

#[test]
fn what_nobody_certified_is_admitted_and_what_an_operator_drained_is_not() {
    let Some(lab) = lab() else { return };
    furnish(&lab, HEALTHY);
    let site = site(&lab, "", WATCH);
    // The first by name would be the first to be measured.
    lab.run(&["scontrol", "update", "NodeName=node0001", "State=DRAIN", "Reason=fan, ticket 7"]);

    // A dry run says so, and starts nothing.
    let dry = fabricgate(&site, &["watch", "--once"]);
    expect(&dry, 0);
    assert!(dry.stderr.contains("due: admit of node[0002-0003] in block01"), "{}", dry.stderr);
    assert!(dry.stderr.contains("fan, ticket 7"), "{}", dry.stderr);
    assert_eq!(lab.holds(), "");
    assert!(!site.path().join("gate").exists(), "a dry run writes nothing");

    let told = fabricgate(&site, &["watch", "--once", "--apply"]);
    expect(&told, 0);
    for node in ["node0002", "node0003"] {
        assert!(lab.features(node).contains("fabric_verified"), "{node}: {}", told.stderr);
        let path = site.path().join(format!("gate/certificates/{node}.json"));
        assert!(fs::read_to_string(path).expect("a certificate").contains("\"admit\""));
    }
    assert_eq!(lab.node("node0001").1, "fan, ticket 7");
    assert_eq!(lab.holds(), "", "nothing is held any more");

    // The next two, and not those again.
    let told = fabricgate(&site, &["watch", "--once", "--apply"]);
    expect(&told, 0);
    assert!(told.stderr.contains("admit of node[0004-0005]"), "{}", told.stderr);

    // Slurm forgets features at a reconfigure: they are said again without measuring.
    lab.run(&["scontrol", "reconfigure"]);
    lab.wait_for("features are forgotten", || {
        !lab.features("node0002").contains("fabric_verified")
    });
    let all_off = WATCH.replace("nodes = 2", "nodes = 2\nprofiles = { missing = \"off\" }");
    let config = fs::read_to_string(site.path().join("fabricgate.toml")).expect("read");
    fs::write(site.path().join("fabricgate.toml"), config.replace(WATCH, &all_off))
        .expect("written");
    let told = fabricgate(&site, &["watch", "--once", "--apply"]);
    expect(&told, 0);
    assert!(told.stderr.contains("marks of node[0002-0005]"), "{}", told.stderr);
    assert!(lab.features("node0002").contains("fabric_verified"), "{}", told.stderr);

    lab.run(&["scontrol", "update", "NodeName=node0001", "State=RESUME"]);
    lab.forget();
}
