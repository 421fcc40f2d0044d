//! Tests of whole configuration files: accepted values, and the reports of mistakes.

use super::*;
use engine::policy::action_policy::removed::REMOVED;

fn read(text: &str) -> Result<Config, String> {
    parse("f.toml", text, Path::new("/etc/f.toml"), Path::new("/etc"), None)
        .map_err(|error| error.to_string())
}

fn complaint(text: &str) -> String {
    read(text).expect_err("a bad file")
}

#[test]
fn paths_are_relative_to_the_file_and_defaults_are_small() {
    let config = read("claims = \"c.toml\"\n").expect("good");
    let ClaimsSource::Sources(wanted) = config.claims else { panic!("{:?}", config.claims) };
    assert_eq!(wanted.files, [PathBuf::from("/etc/c.toml")]);
    assert_eq!(config.run_dir, Path::new("/etc/runs"));
    assert_eq!((config.launcher, config.readings), (Launcher::Local, 1));
    assert!(config.probes.is_none());
    assert_eq!((config.confirm.wait, config.limits.partners), (CONFIRM_AFTER, 3));
    assert_eq!(config.policy, Policy::default());
}

#[test]
fn under_sim_a_configuration_is_read_for_a_simulated_fabric() {
    let under_sim = |text: &str| {
        let (file, folder) = (Path::new("/etc/f.toml"), Path::new("/etc"));
        parse("f.toml", text, file, folder, Some(Path::new("/s.toml"))).expect("good")
    };
    let config = under_sim("claims = \"c\"\n[launcher]\nkind = \"slurm\"\nparallel = 200\n");
    let scenario = PathBuf::from("/s.toml");
    assert_eq!(config.claims, ClaimsSource::Scenario(scenario.clone()));
    assert_eq!(config.launcher, Launcher::Sim { scenario, workers: true });
    // Simulated faults are not transient, and simulated nodes are processes on this machine.
    assert_eq!((config.confirm.wait, config.parallel), (Duration::ZERO, 16));
    // A written value overrides the default.
    let config = under_sim(
        "[confirm]\nwait_s = 5\n[launcher]\nkind = \"sim\"\nscenario = \"t\"\nworkers = false\n",
    );
    assert_eq!(config.confirm.wait, Duration::from_secs(5));
    assert!(matches!(config.launcher, Launcher::Sim { workers: false, .. }));
}

#[test]
fn native_probes_replace_tools_if_configured() {
    let with = |own: &str| {
        let file = format!("claims = \"c\"\n[probes]\nrun = [\"nvbandwidth-ce\", \"tcp\"]\n{own}");
        read(&file).expect("good")
    };
    let tools = |config: &Config| {
        let probes = config.probes.as_ref().expect("named");
        assert_eq!(config.catalog.get("nvbandwidth-ce"), probes.first());
        probes.iter().map(|probe| probe.argv[0].clone()).collect::<Vec<_>>()
    };
    assert_eq!(tools(&with("")), ["nvbandwidth", "{self}"]);
    assert_eq!(tools(&with("own = true\n")), ["{self}", "{self}"]);
}

#[test]
fn slurm_s_programs_default_to_those_of_its_sources() {
    let config = read(
        "[sources.slurm]\nscontrol = [\"ssh\", \"head\", \"scontrol\"]\n\
         [launcher]\nkind = \"slurm\"\nsqueue = [\"q\"]\n",
    );
    let config = config.expect("good");
    let Launcher::Slurm(slurm) = config.launcher else { panic!("{:?}", config.launcher) };
    assert_eq!(slurm.programs.salloc, ["ssh", "head", "salloc"]);
    assert_eq!(slurm.programs.squeue, ["q"]);
    assert_eq!((slurm.mpi.as_str(), slurm.wait_s), ("pmix", 3_600));
}

#[test]
fn pod_settings_are_read_and_mistakes_have_a_location() {
    let with = |rest: &str| {
        let start = "claims = \"c\"\n[launcher]\nkind = \"kubernetes\"\n";
        format!("{start}[launcher.kubernetes]\n{rest}\n")
    };
    let config = read(&with(
        "image = \"r/f:1\"\nkubeconfig = \"k\"\nrdma = { \"rdma/hca\" = 1 }\n\
         env = { A = \"{node}\" }\ntolerations = [{ key = \"gpu\" }]\nbusy = \"wait\"\n\
         gpus = \"claim\"\nranks = \"addresses\"\ngpus_per_node = 0",
    ));
    let launcher = config.expect("good").launcher;
    let Launcher::Kubernetes(pods) = launcher else { panic!("{launcher:?}") };
    assert_eq!(pods.kubeconfig.as_deref(), Some(Path::new("/etc/k")));
    assert_eq!((pods.namespace.as_str(), pods.rdma["rdma/hca"]), ("fabricgate", 1));
    assert_eq!((pods.env["A"].as_str(), pods.gpus_per_node), ("{node}", Some(0)));
    assert_eq!(pods.all_tolerations().len(), 3);

    let bad = |rest: &str| complaint(&with(&format!("image = \"f\"\n{rest}")));
    for (rest, expected) in [
        ("namespace = \"A\"", "f.toml:6:13: namespace: \"A\", expected lower-case"),
        ("shm = \"much\"", "f.toml:6:7: shm: \"much\", expected a size such as"),
        ("resource = \"gpu\"", "f.toml:6:12: resource: \"gpu\", expected a resource such as"),
        ("rdma = { hca = 1 }", "f.toml:6:10: rdma \"hca\", expected a resource"),
        ("rdma = { \"r/h\" = 0 }", "f.toml:6:18: r/h: 0, expected 1 to 1024"),
        ("env = { \"1a\" = \"\" }", "f.toml:6:9: env \"1a\", expected the name of a variable"),
        ("busy = \"reserve\"", "f.toml:6:8: busy: \"reserve\", expected \"skip\" or \"wait\""),
        ("start_s = 0", "f.toml:6:11: start_s: 0, expected 1 to 86400"),
        ("tolerations = [{ value = \"x\" }]", "f.toml:6:16: tolerations: a value without"),
        ("tolerations = [{ effect = \"No\" }]", "f.toml:6:16: tolerations: effect \"No\""),
        ("ranks = \"ssh\"", "f.toml:6:9: ranks: unknown variant `ssh`"),
        ("gres = \"x\"", "f.toml:6:1: unknown field `gres`"),
        ("pull_secret = \"a b\"", "f.toml:6:15: pull_secret: \"a b\", expected the name"),
    ] {
        let message = bad(rest);
        assert!(message.starts_with(expected), "{rest}: {message}");
    }
    let message = complaint(&with(""));
    assert!(message.starts_with("f.toml:4:1: ") && message.contains("expected image"), "{message}");
    let message = complaint("claims = \"c\"\n[launcher]\nkind = \"kubernetes\"\nbusy = \"wait\"\n");
    assert!(message.ends_with("for pods, set it in [launcher.kubernetes]"), "{message}");
    let other = "claims = \"c\"\n[launcher]\nkind = \"local\"\n[launcher.kubernetes]\n";
    let message = complaint(other);
    assert!(
        message.contains("[launcher.kubernetes]: belongs to kind = \"kubernetes\""),
        "{message}"
    );
}

#[test]
fn a_key_that_was_removed_is_named_with_its_place_and_what_to_use_instead() {
    let message = complaint("claims = \"c\"\n[policy]\nper_hour = 0.1\nevict = true\n");
    assert!(message.starts_with("f.toml:4:1: [policy] evict: removed: "), "{message}");
    assert!(message.contains("`kubectl drain`"), "{message}");
    // Also if the key had no effect, and if the file has other mistakes.
    let message = complaint("policy = { evict_s = 9 }\nclaim = \"c\"\n");
    assert!(message.starts_with("f.toml:1:12: [policy] evict_s: removed: "), "{message}");
    for removed in REMOVED {
        let message = complaint(&format!("claims = \"c\"\n[policy]\n{} = 1\n", removed.key));
        assert!(message.ends_with(removed.instead), "{message}");
    }
}

#[test]
fn mistakes_are_named_with_line_and_column() {
    let with = |rest: &str| complaint(&format!("claims = \"c\"\n{rest}"));
    assert!(with("claim = 1\n").starts_with("f.toml:2:1: unknown field `claim`"));
    assert!(with("[policy]\nper_domian = 3\n").starts_with("f.toml:3:1: unknown field"));
    assert!(with("[launcher]\nkind = \"pbs\"\n").starts_with("f.toml:3:8: kind: unknown variant"));
    let slurm = |rest: &str| with(&format!("[launcher]\nkind = \"slurm\"\n{rest}\n"));
    assert!(slurm("busy = \"kill\"").starts_with("f.toml:4:8: busy: unknown variant `kill`"));
    let message = slurm("time_limit = \"soon\"");
    assert!(
        message.starts_with("f.toml:4:14: time_limit: \"soon\", expected minutes"),
        "{message}"
    );
    assert!(slurm("srun = []").starts_with("f.toml:4:8: srun: empty, expected a program"));
    assert_eq!(
        slurm("partition = \"a b\""),
        "f.toml:4:13: partition: \"a b\", expected one argument"
    );
    assert!(slurm("wait_s = -1").starts_with("f.toml:4:10: wait_s: -1"));
    let message = with("[launcher]\nkind = \"local\"\nqos = \"high\"\n");
    assert_eq!(message, "f.toml:4:7: qos: belongs to kind = \"slurm\"");
    assert!(with("[launcher]\nkind = \"command\"\n").contains("expected template"));
    assert!(
        with("[launcher]\nkind = \"command\"\ntemplate = [\"x\"]\n").starts_with("f.toml:4:12")
    );
    assert!(with("[launcher]\nkind = \"local\"\nparallel = 0\n").contains("parallel: 0"));
    let message = with("[probes]\nrun = [\"nvbandwith\"]\n");
    assert!(message.starts_with("f.toml:3:8: unknown probe \"nvbandwith\""), "{message}");
    assert!(with("[probes]\nrun = []\n").contains("nothing would be measured"));
    assert!(with("[probes]\nreadings = 0\n").contains("readings: 0"));
    assert!(with("[policy]\nfreeze_fleet = 5\n").contains("0 to 1"));
    let message = with("[launcher]\nkind = \"local\"\ntemplate = [\"x\"]\n");
    assert_eq!(message, "f.toml:4:12: template: belongs to kind = \"command\"");
    assert!(with("[launcher]\nkind = \"sim\"\n").contains("expected scenario"));
    assert!(with("[confirm]\nwait_s = -1\n").starts_with("f.toml:3:10: wait_s: -1"));
    assert!(with("[sweep]\npartner = 2\n").starts_with("f.toml:3:1: unknown field"));
    let message = with("[probes]\nreadings = 3\nmost_readings = 2\n");
    assert!(message.starts_with("f.toml:4:17: most_readings: 2"), "{message}");
    assert!(complaint("run_dir = \"r\"\n").contains("claims is missing"));
}

#[test]
fn a_value_out_of_range_is_named_with_its_key_and_place() {
    for (section, line, column, expected) in [
        ("[burn_in]\nrounds = 0", 3, 10, "rounds: 0, expected 1 to 10000"),
        ("[burn_in]\nhours = -1", 3, 9, "hours: -1, expected more than 0, to 672"),
        ("[burn_in]\nbudget_hours = 1000", 3, 16, "budget_hours: 1000, expected more than 0"),
        ("[burn_in]\nclean_rounds = 0", 3, 16, "clean_rounds: 0, expected 1 to 10000"),
        ("[burn_in]\nsoak_minutes = 1e9", 3, 16, "soak_minutes: 1000000000, expected 0 to 1440"),
        ("[burn_in]\ndrift = 1.5", 3, 9, "drift: 1.5, expected 0 to"),
        ("[burn_in]\ndrift = 1.0", 3, 9, "drift: 1, expected 0 to"),
        ("[audit]\nminutes = 0", 3, 11, "minutes: 0, expected more than 0, to 1440"),
        ("[audit]\nminutes = nan", 3, 11, "minutes: NaN, expected more than 0, to 1440"),
        ("[audit]\nnodes_at_most = 0", 3, 17, "nodes_at_most: 0, expected 1 or more"),
        ("[audit]\nshare = 1.5", 3, 9, "share: 1.5, expected more than 0, to 1"),
        ("[audit]\nshare_of_domain = 0", 3, 19, "share_of_domain: 0, expected more than 0, to 1"),
        ("[history]\nkeep_days = 0", 3, 13, "keep_days: 0, expected 1 to 36500"),
        ("[history]\nthin_after_days = 10", 3, 19, "thin_after_days: 10, expected keep_days (365)"),
        ("[sources]\nlimit_s = 0.05", 3, 11, "limit_s: 0.05, expected 0.1 to 3600"),
        ("[notify]\nstands_h = 0.5", 3, 12, "stands_h: 0.5, expected 1 to 8784"),
        ("[watch]\ncool_down_h = 9000", 3, 15, "cool_down_h: 9000, expected 0 to 8784"),
        // A default has no place: the other value of the two is the mistake.
        ("[watch.backoff]\nfirst_s = 30000", 3, 11, "most_s is less than first_s"),
        ("[watch.backoff]\nfirst_s = 9\nmost_s = 8", 4, 10, "most_s is less than first_s"),
        (
            "[gate]\nthrough = \"kubernetes\"\n[watch.lease]\nrenew_s = 10",
            5,
            11,
            "the Lease: expected renew_s",
        ),
    ] {
        let message = complaint(&format!("claims = \"c\"\n{section}\n"));
        let place = format!("f.toml:{line}:{column}: {expected}");
        assert!(message.starts_with(&place), "{section}: {message}");
    }
    for (key, rest, expected) in [
        ("attempts", "0", "attempts: 0, expected 1 to 20"),
        ("timeout_s", "90.0", "timeout_s: 90, expected 0.1 to 60"),
        ("per_hour", "0", "per_hour: 0, expected 1 to 1000"),
    ] {
        let target = "[[notify.target]]\nname = \"a\"\nkind = \"slack\"\nurl_env = \"A\"\n";
        let message = complaint(&format!("claims = \"c\"\n{target}{key} = {rest}\n"));
        assert!(
            message.starts_with(&format!("f.toml:6:{}: {expected}", key.len() + 4)),
            "{message}"
        );
    }
}
