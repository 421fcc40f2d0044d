//! The simulated fabric from outside: example scenarios, the shipped recording, and fake tools on
//! PATH.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use sim::scenario::Scenario;
use sim::{recorded_files, tool_dispatch};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn binary() -> Command {
    Command::new(assert_cmd::cargo::cargo_bin!("fabricgate"))
}

fn files_below(folder: &Path, base: &Path, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files_below(&path, base, found);
        } else {
            let name = path.strip_prefix(base).expect("below the base").display().to_string();
            found.insert(name, fs::read_to_string(&path).expect("a text file"));
        }
    }
}

#[test]
fn every_example_scenario_can_be_recorded_and_has_a_comment() {
    let mut seen = 0;
    for entry in fs::read_dir(root().join("examples")).expect("examples") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a text file");
        assert!(text.starts_with("# ") && text.contains("# Expect: "), "{}", path.display());
        let scenario = Scenario::parse(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let recording =
            recorded_files::record_scenario(&scenario, None, Some(1)).expect("a recording");
        assert!(2 < recording.files.len(), "{}", path.display());
        seen += 1;
    }
    assert!(11 <= seen, "{seen} examples");
}

#[test]
fn the_shipped_recording_matches_its_scenario() {
    let scenario = fs::read_to_string(root().join("examples/rack-lost-link.toml")).expect("text");
    let scenario = Scenario::parse(&scenario).expect("a good scenario");
    let recording = recorded_files::record_scenario(&scenario, None, None).expect("a recording");
    let base = root().join("tests/recorded/rack-lost-link");
    let mut shipped = BTreeMap::new();
    files_below(&base, &base, &mut shipped);
    let names = |files: &BTreeMap<String, String>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&shipped), names(&recording.files));
    for (name, text) in &shipped {
        assert!(*text == recording.files[name], "{name} differs from what the scenario gives");
    }
    let truth = fs::read_to_string(base.with_extension("truth.toml")).expect("the truth");
    assert_eq!(truth, recording.truth);
}

#[test]
fn a_recording_is_not_written_over_anything_by_accident() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = folder.path().join("rack");
    let scenario = root().join("examples/host-link-x8.toml");
    let record = |force: bool| {
        let mut command = binary();
        command.args(["sim", "record"]).arg(&scenario).arg(&target).args(["--readings", "1"]);
        if force {
            command.arg("--force");
        }
        command.assert()
    };
    record(false).success();
    assert!(target.join("claims.toml").is_file());
    assert!(folder.path().join("rack.truth.toml").is_file());
    record(false).code(2);
    record(true).success();
    fs::remove_file(target.join("claims.toml")).expect("removed");
    record(true).code(2);
    let left: Vec<_> = fs::read_dir(folder.path()).expect("readable").collect();
    assert_eq!(left.len(), 2, "nothing temporary is left");
}

#[test]
fn a_scenario_that_is_wrong_or_absent_ends_with_one_message_and_its_code() {
    let folder = tempfile::tempdir().expect("a folder");
    let broken = folder.path().join("broken.toml");
    fs::write(&broken, "title = \"t\"\nseeed = 1\n").expect("written");
    let run = |path: &Path| {
        binary().args(["sim", "record"]).arg(path).arg(folder.path().join("out")).assert()
    };
    let output = run(&broken).code(2).get_output().clone();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("broken.toml") && message.contains("line 2"), "{message}");
    // An impossible fault is also named by its line.
    let text = "title = \"t\"\n[[domain]]\nname = \"r\"\nnodes = \"n1\"\nplatform = \"gb200-nvl72\"\n\
                [[fault]]\nkind = \"gpu-parked\"\ngpu = \"n1:7\"\n";
    fs::write(&broken, text).expect("written");
    let output = run(&broken).code(2).get_output().clone();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    let expected = "broken.toml: line 6: fault 1: no GPU `n1:7`: n1 has 4, in slots 0, 1, 2, 3\n";
    assert!(message.ends_with(expected), "{message}");
    run(&folder.path().join("absent.toml")).code(5);
    assert!(!folder.path().join("out").exists());
}

#[test]
fn fake_tools_answer_as_the_tool_does_there() {
    let fake = |tool: &str, node: &str| {
        let mut command = Command::new(root().join("tests/fakes").join(tool));
        command
            .env("FABRICGATE_BIN", assert_cmd::cargo::cargo_bin!("fabricgate"))
            .env("FABRICGATE_SIM", root().join("examples/corrupt.toml"))
            .env("FABRICGATE_SIM_NODE", node);
        command
    };
    let test = ["-t", "device_to_device_memcpy_read_ce"];
    let output = fake("nvbandwidth", "hgx01").args(test).assert().success().get_output().clone();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("\nSUM device_to_device_memcpy_read_ce "), "{text}");
    let output = fake("nvbandwidth", "hgx04").args(test).assert().code(1).get_output().clone();
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("ASSERT "));
    fake("nvidia-smi", "hgx01").args(["nvlink", "-s"]).assert().success();
    fake("nvbandwidth", "hgx99").assert().code(2);
}

#[test]
fn nccl_tests_write_their_json_file_where_asked() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("out.json");
    let scenario = root().join("examples/hgx-pod.toml");
    let mut command = binary();
    command.args(["sim", "tool", "all_reduce_perf", "--node", "hgx01", "--scenario"]);
    command.arg(scenario).args(["--", "-g", "8", "-b", "1M", "-e", "4M", "-J"]).arg(&file);
    command.assert().success();
    let text = fs::read_to_string(&file).expect("the file");
    let value: serde_json::Value = serde_json::from_str(&text).expect("valid JSON");
    assert_eq!(value["results"].as_array().map(Vec::len), Some(3));
    assert_eq!(value["config"]["ngpus"], 8);
    // One entry for every process.
    assert_eq!(value["config"]["devices"].as_array().map(Vec::len), Some(1));
}

/// fabricgate under the names of tools, in a folder of links.
struct Links(tempfile::TempDir);

impl Links {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for name in tool_dispatch::NAMES {
            let target = assert_cmd::cargo::cargo_bin!("fabricgate");
            std::os::unix::fs::symlink(target, folder.path().join(name)).expect("a link");
        }
        Self(folder)
    }

    fn path(&self, tool: &str) -> PathBuf {
        self.0.path().join(tool)
    }

    /// A tool on a node of an example.
    fn tool(&self, tool: &str, example: &str, node: &str) -> Command {
        let mut command = Command::new(self.path(tool));
        command
            .env("FABRICGATE_SIM", root().join("examples").join(example))
            .env("FABRICGATE_SIM_NODE", node)
            .env_remove("FABRICGATE_STEP");
        command
    }
}

fn stdout(command: &mut Command, code: i32) -> String {
    let output = command.assert().code(code).get_output().clone();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_tool_called_by_name_answers_and_ends_with_its_own_exit_code() {
    let links = Links::new();
    let test = ["-t", "device_to_device_memcpy_read_ce"];
    let healthy = stdout(links.tool("nvbandwidth", "corrupt.toml", "hgx01").args(test), 0);
    assert!(healthy.contains("\nSUM device_to_device_memcpy_read_ce "), "{healthy}");
    stdout(links.tool("nvbandwidth", "corrupt.toml", "hgx04").args(test), 1);
    let hosts =
        ["-np", "16", "--host", "hgx01:8,hgx04:8", "all_reduce_perf", "-b", "1M", "-g", "1"];
    let wrong = stdout(links.tool("mpirun", "corrupt.toml", "hgx01").args(hosts), 7);
    assert!(wrong.contains("FAILED"), "{wrong}");
}

#[test]
fn without_a_scenario_a_name_changes_nothing() {
    let links = Links::new();
    let mut command = Command::new(links.path("nvbandwidth"));
    let text = stdout(command.env_remove("FABRICGATE_SIM").arg("--version"), 0);
    assert!(text.starts_with("fabricgate "), "{text}");
    let mut command = binary();
    command.env("FABRICGATE_SIM", root().join("examples/corrupt.toml")).arg("--version");
    assert_eq!(stdout(&mut command, 0), text);
}

#[test]
fn every_step_and_reading_has_its_own_noise() {
    let links = Links::new();
    let read = |step: Option<&str>| {
        let mut command = links.tool("nvbandwidth", "hgx-pod.toml", "hgx01");
        command.args(["-t", "device_to_device_memcpy_read_ce"]);
        stdout(command.envs(step.map(|step| ("FABRICGATE_STEP", step))), 0)
    };
    assert_eq!(read(Some("4.0")), read(Some("4.0")));
    assert_ne!(read(Some("4.0")), read(Some("4.1")));
    assert_ne!(read(Some("4.0")), read(Some("5.0")));
    assert_eq!(read(None), read(None));
}

#[test]
fn a_node_that_is_not_reached_answers_as_ssh_does() {
    let links = Links::new();
    let output = links
        .tool("nvidia-smi", "unwell-nodes.toml", "hgx02")
        .arg("-q")
        .assert()
        .code(255)
        .get_output()
        .clone();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(stderr, "ssh: connect to host hgx02 port 22: No route to host\n");
    let text = fs::read_to_string(root().join("examples/unwell-nodes.toml")).expect("text");
    let scenario = Scenario::parse(&text).expect("good");
    assert!(sim::is_unreachable(&scenario, "hgx02"));
    assert_eq!(sim::refuse_worker(&scenario, "hgx01"), None);
    let apps = ["--query-compute-apps=pid,process_name", "--format=csv,noheader"];
    let busy = stdout(links.tool("nvidia-smi", "unwell-nodes.toml", "hgx04").args(apps), 0);
    assert!(busy.starts_with("31000, python3 train.py\n"), "{busy}");
    assert_eq!(stdout(links.tool("nvidia-smi", "unwell-nodes.toml", "hgx01").args(apps), 0), "");
}

#[test]
fn a_tool_that_hangs_is_still_there_when_it_is_given_up() {
    let links = Links::new();
    let mut command = links.tool("nvbandwidth", "unwell-nodes.toml", "hgx06");
    command.timeout(std::time::Duration::from_millis(300));
    command.assert().interrupted();
}

/// A server of a simulated tool: it listens before this returns.
#[expect(clippy::disallowed_methods, reason = "the server must run concurrently with the test")]
#[expect(clippy::zombie_processes, reason = "the test waits for it")]
fn serving(links: &Links, words: &[&str], port: u16, node: &str) -> std::process::Child {
    let (tool, args) = words.split_first().expect("a tool");
    let child = std::process::Command::new(links.path(tool))
        .args(args)
        .env("FABRICGATE_SIM", root().join("examples/rail-half-rate.toml"))
        .env("FABRICGATE_SIM_NODE", node)
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("started");
    // A line of /proc/net/tcp: number, local address:port, remote, state (0A listens).
    let wanted = format!("0100007F:{port:04X}");
    for _ in 0..1000 {
        let table = fs::read_to_string("/proc/net/tcp").expect("the table of sockets");
        let listens = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.get(1) == Some(&wanted.as_str()) && words.get(3) == Some(&"0A")
        };
        if table.lines().any(listens) {
            return child;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("no process listens at {port}")
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

#[test]
fn a_server_listens_until_its_client_was_there() {
    let links = Links::new();
    let port = free_port().to_string();
    let number: u16 = port.parse().expect("a port");
    let rail = ["-d", "mlx5_2", "--report_gbits", "-p", port.as_str()];
    let server: Vec<&str> = std::iter::once("ib_write_bw").chain(rail).collect();
    let mut child = serving(&links, &server, number, "hgx07");
    let client = |code: i32| {
        let mut command = links.tool("ib_write_bw", "rail-half-rate.toml", "hgx01");
        stdout(command.args(rail).arg("hgx07"), code)
    };
    let text = client(0);
    assert!(child.wait().expect("it ended").success());
    let row = text.lines().find(|line| line.starts_with(" 65536")).expect("a row");
    let rate: f64 = row.split_whitespace().nth(3).expect("a rate").parse().expect("a number");
    assert!((190.0..200.0).contains(&rate), "half of 390 Gb/s: {row}");
    // Now no process listens.
    assert_eq!(client(1), "");
}

#[test]
fn iperf3_meets_its_server_too() {
    let links = Links::new();
    let number = free_port();
    let port = number.to_string();
    let mut child = serving(&links, &["iperf3", "-s", "-1", "-p", &port], number, "hgx02");
    let run = |code| {
        let mut command = links.tool("iperf3", "rail-half-rate.toml", "hgx01");
        let text = stdout(command.args(["-c", "hgx02", "-p", &port, "-J", "-t", "1"]), code);
        serde_json::from_str::<serde_json::Value>(&text).expect("JSON")
    };
    let value = run(0);
    assert!(value["end"]["sum_sent"]["bits_per_second"].as_f64().is_some_and(|r| 3.6e11 < r));
    assert!(child.wait().expect("it ended").success());
    assert_eq!(run(1)["error"], "unable to connect to server: Connection refused");
}

#[test]
fn the_claims_of_a_scenario_name_its_leaves_and_rails() {
    let scenario = root().join("examples/hgx-pod-128.toml");
    let text = stdout(binary().args(["sim", "claims"]).arg(scenario), 0);
    let value: toml::Value = toml::from_str(&text).expect("TOML");
    let list = |name: &str| value[name].as_array().expect("a list").clone();
    assert_eq!((list("domain").len(), list("leaf").len(), list("rail").len()), (128, 4, 8));
    assert_eq!(list("leaf")[1]["nodes"].as_str(), Some("hgx[033-064]"));
    assert_eq!(list("rail")[7]["rdma"].as_str(), Some("mlx5_7"));
    let scenario = root().join("examples/rack-healthy.toml");
    let text = stdout(binary().args(["sim", "claims"]).arg(scenario), 0);
    assert!(text.contains("block01") && !text.contains("[[rail]]"), "{text}");
}

/// Four nodes on two rails; one GPU has lost links and one NIC runs at half rate.
const FLEET: &str = "title = \"six nodes\"\nseed = 5\n[noise]\nsigma = 0.002\n[network]\nrails = 2\n\
    leaf_nodes = 6\n[[domain]]\nnodes = \"hgx[01-06]\"\nplatform = \"hgx-h100\"\nper_node = true\n\
    [[fault]]\nkind = \"lost-links\"\ngpu = \"hgx02:3\"\n\
    [[fault]]\nkind = \"rail-rate\"\nnode = \"hgx03\"\nrail = 1\nshare = 0.5\n\
    [[fault]]\nkind = \"unreachable\"\nnode = \"hgx04\"\n";

/// The verdicts of an audit of that fleet, without the ids of the run.
fn audited(workers: bool) -> serde_json::Value {
    let dir = tempfile::tempdir().expect("a folder");
    fs::write(dir.path().join("fleet.toml"), FLEET).expect("written");
    let config = format!(
        "run_dir = \"runs\"\n[launcher]\nkind = \"sim\"\nscenario = \"fleet.toml\"\n\
         workers = {workers}\n[confirm]\nwait_s = 0\n[probes]\n\
         run = [\"nvidia-smi-nvlink\", \"nvbandwidth-ce\", \"ib-write-bw\", \"ib-read-bw\"]\n"
    );
    fs::write(dir.path().join("fabricgate.toml"), config).expect("written");
    let words = ["audit", "--json", "--no-progress", "--seed", "7", "--config", "fabricgate.toml"];
    binary().current_dir(dir.path()).args(words).assert().code(3);
    let run = fs::read_dir(dir.path().join("runs")).expect("runs").next().expect("a run");
    let path = run.expect("an entry").path().join("verdicts.json");
    serde_json::from_slice(&fs::read(path).expect("verdicts")).expect("JSON")
}

#[test]
fn a_fleet_played_in_one_process_is_judged_as_one_with_workers() {
    let (played, worked) = (audited(false), audited(true));
    // The launcher's process reports why a node was not reached.
    for part in ["findings", "outcome", "notes"] {
        assert_eq!(played[part], worked[part], "{part}");
    }
    let outcomes = |verdicts: &serde_json::Value| -> Vec<(String, String)> {
        let nodes = verdicts["nodes"].as_array().expect("nodes");
        nodes.iter().map(|n| (n["node"].to_string(), n["outcome"].to_string())).collect()
    };
    assert_eq!(outcomes(&played), outcomes(&worked));
    let findings = played["findings"].as_array().expect("findings");
    let places: Vec<&str> = findings.iter().filter_map(|f| f["locus"]["node"].as_str()).collect();
    assert!(places.contains(&"hgx02") && places.contains(&"hgx03"), "{places:?}");
}
