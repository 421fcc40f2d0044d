//! Slurm's hooks on a node: the programs of `ci/examples/slurm`, run by real slurmds before and
//! after real jobs, over certificates that a real run issued.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::hold::{HEALTHY, fabricgate, furnish, site};
use super::*;

/// A certified node, one without a certificate, and one with an edited certificate.
const CERTIFIED: &str = "node0003";
const UNKNOWN: &str = "node0030";
const EDITED: &str = "node0004";

/// The hooks in force in the lab; restored at the end.
struct Hooks<'a> {
    lab: &'a Lab,
    conf: PathBuf,
    before: String,
}

impl Drop for Hooks<'_> {
    fn drop(&mut self) {
        // After any result: the other tests need the lab as it was.
        let _ = fs::write(&self.conf, &self.before);
        self.lab.finished(&["umount", "/etc/default"]);
        self.lab.finished(&["scontrol", "reconfigure"]);
        let resume = ["scontrol", "update", "NodeName=ALL", "State=RESUME"];
        self.lab.finished(&resume);
    }
}

impl<'a> Hooks<'a> {
    /// Installs the programs and the lines of `slurm.conf.part`.
    fn install(lab: &'a Lab) -> Self {
        let state = Path::new(&lab.run).parent().expect("the lab's folder");
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("ci/examples/slurm");
        for folder in ["srv/hooks", "srv/default"] {
            fs::create_dir_all(state.join(folder)).expect("a folder");
        }
        for name in ["certificate-check", "healthcheck", "prolog", "epilog"] {
            let to = state.join("srv/hooks").join(name);
            fs::copy(examples.join(name), &to).expect("copied");
            fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).expect("changed");
        }
        // As a program that records its arguments, in front of the real one.
        let asked = "#!/bin/sh\necho \"$*\" >>/srv/hooks/asked\nexec /srv/fabricgate \"$@\"\n";
        let program = state.join("srv/hooks/fabricgate");
        fs::write(&program, asked).expect("written");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("changed");
        fs::write(state.join("srv/hooks/asked"), "").expect("written");
        let part = fs::read_to_string(examples.join("slurm.conf.part")).expect("the lines");
        let part = part.replace("/usr/lib/fabricgate/slurm/", "/srv/hooks/");
        // No test waits five minutes.
        let part = part.replace("HealthCheckInterval=300", "HealthCheckInterval=5");
        let conf = state.join("etc/slurm.conf");
        let before = fs::read_to_string(&conf).expect("the configuration");
        fs::write(&conf, format!("{before}{part}")).expect("written");
        let hooks = Self { lab, conf, before };
        hooks.set_prolog("note");
        lab.run(&["mount", "--bind", "/srv/default", "/etc/default"]);
        lab.run(&["scontrol", "reconfigure"]);
        hooks
    }

    fn srv(&self) -> PathBuf {
        Path::new(&self.lab.run).parent().expect("the lab's folder").join("srv")
    }

    /// Content of /etc/default/fabricgate on the nodes.
    fn set_prolog(&self, prolog: &str) {
        let text = format!(
            "FABRICGATE=/srv/hooks/fabricgate\nFABRICGATE_STATE=/srv/gate\n\
             FABRICGATE_PROLOG={prolog}\n"
        );
        fs::write(self.srv().join("default/fabricgate"), text).expect("written");
    }

    /// Runs a job on a node; true if it ran.
    fn job(&self, node: &str) -> bool {
        let argv = ["timeout", "50", "srun", "-Q", "-p", "main", "-w", node, "-N1", "--mpi=none"];
        let (text, ending) = self.lab.finished(&[&argv[..], &["echo", "ran"]].concat());
        ending.is_success() && text.trim() == "ran"
    }

    /// Number of queries of a node's certificate.
    fn asked(&self, node: &str) -> usize {
        let text = fs::read_to_string(self.srv().join("hooks/asked")).expect("the notes");
        text.lines().filter(|line| line.contains(&format!("verify {node} "))).count()
    }

    fn is_drained(&self, node: &str) -> (bool, String) {
        let (state, reason) = self.lab.node(node);
        (state.iter().any(|word| word == "DRAIN"), reason)
    }
}

#[test]
fn slurmds_hooks_note_and_cost_no_node_unless_strict_meets_what_is_not_valid() {
    let Some(lab) = lab() else { return };
    furnish(&lab, HEALTHY);
    let site = site(&lab, "", "");
    // Two nodes of one domain, measured as a whole: certificates as the gate issues them.
    let nodes = format!("{CERTIFIED},{EDITED}");
    let output = fabricgate(&site, &["recertify", &nodes, "--apply"]);
    let issued = site.path().join("gate/certificates");
    assert!(
        issued.join(format!("{CERTIFIED}.json")).is_file(),
        "{}\n{}",
        output.stdout,
        output.stderr
    );
    let hooks = Hooks::install(&lab);
    let there = hooks.srv().join("gate/certificates");
    fs::create_dir_all(&there).expect("a folder");
    for node in [CERTIFIED, EDITED] {
        let file = format!("{node}.json");
        fs::copy(issued.join(&file), there.join(&file)).expect("copied");
    }
    // One expired long ago.
    let file = there.join(format!("{EDITED}.json"));
    let mut certificate: serde_json::Value =
        serde_json::from_slice(&fs::read(&file).expect("a certificate")).expect("JSON");
    assert!(certificate["expires"].is_string(), "{certificate}");
    certificate["expires"] = "2020-01-01T00:00:00Z".into();
    certificate["expires_unix"] = 1_577_836_800.into();
    fs::write(&file, serde_json::to_vec(&certificate).expect("JSON")).expect("written");

    for node in [CERTIFIED, UNKNOWN, EDITED] {
        let before = hooks.asked(node);
        assert!(hooks.job(node), "{node}: the job does not run");
        lab.wait_for("prolog and epilog", || before + 2 <= hooks.asked(node));
        assert!(!hooks.is_drained(node).0, "{node}");
    }
    // Health checks ran when the daemons were reconfigured, also on nodes without a job.
    lab.wait_for("a health check", || 0 < hooks.asked("node0036"));

    hooks.set_prolog("strict");
    assert!(hooks.job(CERTIFIED) && hooks.job(UNKNOWN), "strict takes what is valid or unknown");
    assert!(!hooks.job(EDITED), "strict refuses what is not valid");
    lab.wait_for("the drain of slurmd", || hooks.is_drained(EDITED).0);
    assert_eq!(hooks.is_drained(EDITED).1, "Prolog error", "slurmd's reason, not fabricgate's");
    drop(hooks);
    lab.settle();
}
