//! Boxes whose NVLink ends at the node, claimed in one line: each is its own domain for `claims`,
//! `plan` and `judge`.

use super::*;

const BOXES: usize = 100;

/// Accepted spellings of the claim, with the platform that the configuration names.
const WAYS: [(&str, &str, &str); 4] = [
    (
        "claims.toml",
        "[[domain]]\nnodes = \"hgx[001-100]\"\nper_node = true\nplatform = \"hgx-h100\"\n",
        "",
    ),
    (
        "claims.toml",
        "[[domain]]\nname = \"pod\"\nnodes = \"hgx[001-100]\"\nplatform = \"hgx-h100\"\n",
        "",
    ),
    (
        "claims.toml",
        "[[domain]]\nname = \"pod\"\nnodes = \"hgx[001-100]\"\n",
        "platform = \"hgx-h100\"\n",
    ),
    (
        "topology.conf",
        "SwitchName=leaf1 Nodes=hgx[001-050]\nSwitchName=leaf2 Nodes=hgx[051-100]\nSwitchName=spine Switches=leaf[1-2]\n",
        "platform = \"hgx-h100\"\n",
    ),
];

fn configured(file: &str, text: &str, platform: &str) -> Place {
    let place = Place::new();
    place.put(file, text);
    let sources = "[sources]\ngpus_per_node = 8\n[launcher]\nkind = \"command\"\ntemplate = [\"ssh\", \"{node}\"]\n";
    place.put("fabricgate.toml", &format!("claims = \"{file}\"\n{platform}{sources}"));
    place
}

/// Output of nvbandwidth for eight GPUs, all pairs at this rate.
fn matrix(rate: f64) -> String {
    let columns: Vec<String> = (0..8).map(|gpu| gpu.to_string()).collect();
    let devices: String = (0..8)
        .map(|gpu| format!("Device {gpu}: NVIDIA H100 80GB HBM3 (00000000:{gpu}b:00)\n"))
        .collect();
    let rows: String = (0..8)
        .map(|row| {
            let cell =
                |col: usize| if col == row { "N/A".to_owned() } else { format!("{rate:.2}") };
            let cells: Vec<String> = (0..8).map(cell).collect();
            format!(" {row}  {}\n", cells.join("  "))
        })
        .collect();
    let test = "device_to_device_memcpy_read_ce";
    format!(
        "nvbandwidth Version: v0.8\nBuilt from Git version: v0.8\n\nCUDA Runtime Version: 12080\n\
         CUDA Driver Version: 12080\nDriver Version: 570.26\n\n{devices}\nRunning {test}.\n\
         memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n     {}\n{rows}\nSUM {test} {:.2}\n\n\
         NOTE: The reported results may not reflect the full capabilities of the platform.\n\
         Performance can vary with software drivers, hardware clocks, and system topology.\n",
        columns.join("  "),
        rate * 56.0
    )
}

#[test]
fn every_box_is_a_domain_of_its_own_for_claims_and_plan() {
    for (file, text, platform) in WAYS {
        let place = configured(file, text, platform);
        let claims = place.claims(&["--config", "fabricgate.toml"], 0);
        let domains = claims["domains"].as_array().expect("domains");
        assert_eq!(domains.len(), BOXES, "{file} {text}");
        for domain in domains {
            assert_eq!(domain["nodes"], serde_json::json!([domain["name"]]), "{file} {text}");
        }
        let words = ["plan", "audit", "--config", "fabricgate.toml", "--json"];
        let output = place.run(&words);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        let plan: Value = serde_json::from_slice(&output.stdout).expect("one document");
        assert!(plan.to_string().contains("hgx100"), "{file}: {plan}");
    }
}

#[test]
fn boxes_that_were_measured_pass_and_one_that_was_not_does_not() {
    for (file, text, _) in &WAYS[..2] {
        let place = Place::new();
        fs::create_dir(place.path("rec")).expect("made");
        place.put(&format!("rec/{file}"), text);
        for at in 1..BOXES {
            let node = format!("rec/nodes/hgx{at:03}");
            fs::create_dir_all(place.path(&node)).expect("made");
            place.put(&format!("{node}/nvbandwidth.txt"), &matrix(395.0));
        }
        let output = place.run(&["judge", "rec", "--json"]);
        let verdicts: Value = serde_json::from_slice(&output.stdout).expect("one document");
        let nodes = verdicts["nodes"].as_array().expect("nodes");
        assert_eq!(nodes.len(), BOXES, "{verdicts}");
        for node in nodes {
            let expected = if node["node"] == "hgx100" { "unknown" } else { "pass" };
            assert_eq!(node["outcome"], expected, "{node}");
            assert_eq!(node["domain"], node["node"]);
        }
        assert_eq!(output.status.code(), Some(4));
    }
}
