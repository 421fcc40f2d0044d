//! A GPU that gets slower while it is measured, in a live sweep.

use super::*;

#[test]
fn a_gpu_that_drifts_in_a_live_sweep_is_reported_only_as_drifting() {
    let place = Place::new();
    let scenario = "title = \"drift\"\nseed = 64\n[noise]\nsigma = 0.003\n\
        [[domain]]\nnodes = \"node[0001-0003]\"\nplatform = \"hgx-h100\"\nper_node = true\n\
        [[fault]]\nkind = \"drift\"\ngpu = \"node0002:3\"\nshare = 0.025\n";
    place.put("drift.toml", scenario);
    place.put(
        "fabricgate.toml",
        "run_dir = \"runs\"\n[launcher]\nkind = \"sim\"\nscenario = \"drift.toml\"\n\
         [probes]\nrun = [\"nvbandwidth-ce\"]\nreadings = 5\n[confirm]\nwait_s = 0.5\n",
    );
    let output = place.configured(&["audit", "--json", "--no-progress"]);
    let run: Value = serde_json::from_slice(&output.stdout).expect("one document");
    let findings = run["verdicts"]["findings"].as_array().expect("findings");
    let classes: Vec<&str> = findings.iter().filter_map(|found| found["class"].as_str()).collect();
    assert_eq!(classes, ["drifting"], "{findings:?}");
    assert_eq!(
        (&findings[0]["locus"]["node"], &findings[0]["locus"]["gpu"]),
        (&"node0002".into(), &3.into())
    );
    for node in run["verdicts"]["nodes"].as_array().expect("nodes") {
        let expected = if node["node"] == "node0002" { "unknown" } else { "pass" };
        assert_eq!(node["outcome"], expected, "{node}");
    }
}
