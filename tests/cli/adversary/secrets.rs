//! Secrets in the environment, in files and in the configuration: none of them appears in printed
//! or written output, or reaches a started program.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::place::{Place, files};

/// Prefix of every secret here.
const MARK: &str = "s3cr3t-";

/// Secrets under the names that sites use: no list of endings covers all of them.
const OTHERS: [&str; 16] = [
    "CI_JOB_JWT",
    "DOCKER_AUTH_CONFIG",
    "VAULT_SECRET_ID",
    "DATABASE_URL",
    "HTTPS_PROXY",
    "SENTRY_DSN",
    "GH_PAT",
    "SIGNING_KEY",
    "AZURE_STORAGE_KEY",
    "MYSQL_PWD",
    "GRAFANA_PASS",
    "SLACK_WEBHOOK",
    "TOKEN_GITHUB",
    "DB_PASSWORD_PROD",
    "AWS_ACCESS_KEY_ID",
    "NVIDIA_API_KEY",
];

/// A stand-in for ssh that records arguments, its environment, and the command lines of all
/// visible processes, and then acts as the node.
const REACH: &str = "{ printf '%s\\n' \"$@\"; env; } >> seen\n\
    for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done 2>/dev/null >> seen\n\
    shift\nexec \"$@\"";

fn site() -> Place {
    let mut place = Place::new();
    place.program("fabricgate", &format!("exec {} \"$@\"", env!("CARGO_BIN_EXE_fabricgate")));
    place.program("ssh", REACH);
    place.program("nvbandwidth", "env >> seen.tool; exit 1");
    place.program(
        "scontrol",
        "env >> seen.scontrol; case \"$*\" in *ping*) echo 'Slurmctld(primary) at head is UP';; \
         *json*) echo '{\"nodes\": []}';; esac",
    );
    place.put("claims.toml", "[[domain]]\nname = \"a\"\nnodes = \"n1\"\nplatform = \"hgx-h100\"\n");
    place.put("url", format!("http://127.0.0.1:9/{MARK}path?key={MARK}query\n"));
    place.put("token", format!("{MARK}bearer\n"));
    let config = format!(
        "claims = \"claims.toml\"\nrun_dir = \"runs\"\npass_env = [\"SITE_*\"]\n[launcher]\nkind = \"command\"\n\
         template = [\"ssh\", \"{{node}}\"]\n[probes]\nrun = [\"nvbandwidth-ce\"]\nreadings = 1\n\
         [gate]\nstate = \"gate\"\n[notify]\nwithin_s = 1\n\
         [[notify.target]]\nname = \"file\"\nkind = \"generic\"\nurl_file = \"url\"\n\
         bearer_file = \"token\"\nattempts = 1\ntimeout_s = 0.5\n\
         [[notify.target]]\nname = \"variable\"\nkind = \"slack\"\nurl_env = \"OPS_HOOK\"\n\
         bearer_env = \"OPS_BEARER\"\nattempts = 1\ntimeout_s = 0.5\n\
         [[notify.target]]\nname = \"inline\"\nkind = \"generic\"\n\
         url = \"http://user:{MARK}pw@127.0.0.1:9/{MARK}inline\"\nattempts = 1\ntimeout_s = 0.5\n"
    );
    place.put("fabricgate.toml", config);
    fs::set_permissions(place.path("fabricgate.toml"), fs::Permissions::from_mode(0o600))
        .expect("set");
    for (name, value) in [
        ("OPS_HOOK", format!("http://127.0.0.1:9/{MARK}hook")),
        // Its name does not mark it as a secret: only the configuration does.
        ("OPS_BEARER", format!("{MARK}variable")),
        ("SLURM_JWT", format!("{MARK}jwt")),
        ("GITHUB_TOKEN", format!("{MARK}github")),
        ("AWS_SECRET_ACCESS_KEY", format!("{MARK}aws")),
        ("DB_PASSWORD", format!("{MARK}db")),
    ] {
        place.env.insert(name.to_owned(), value);
    }
    for name in OTHERS {
        place.env.insert(name.to_owned(), format!("{MARK}{name}"));
    }
    // Variables that steer tools, and variables that the configuration names.
    place.env.insert("NCCL_DEBUG".to_owned(), "WARN".to_owned());
    place.env.insert("SITE_RAIL".to_owned(), "rail0".to_owned());
    place
}

#[test]
fn no_secret_is_printed_written_or_handed_on() {
    let place = site();
    for args in [
        &["config", "check"][..],
        &["--json", "config", "check"],
        &["--verbose", "audit"],
        &["--json", "audit"],
        &["notify", "test"],
        &["--json", "notify", "test"],
        &["notify", "test", "--dry-run"],
        &["doctor"],
        &["gate", "status"],
        &["metrics"],
        &["history"],
        &["claims", "--from", "slurm"],
        &["claims", "--from", "slurmrestd=http://127.0.0.1:9"],
        &["probes", "list"],
        &["watch", "--once"],
    ] {
        let args = [&["--config", "fabricgate.toml"], args].concat();
        let ended = place.run(&args);
        for text in [&ended.stdout, &ended.stderr] {
            assert!(!text.contains(MARK), "{args:?} prints a secret: {text}");
        }
    }
    let run = fs::read_dir(place.path("runs")).expect("runs").next().expect("a run");
    let run = run.expect("an entry").path().display().to_string();
    for args in [
        &["report", &run][..],
        &["report", &run, "--json"],
        &["report", &run, "--format", "html", "--output", "page.html"],
        &["report", &run, "--bundle", "n1", "--output", "b.tgz"],
        &["replay", &run, "--json"],
    ] {
        let ended = place.run(args);
        assert!(!(ended.stdout + &ended.stderr).contains(MARK), "{args:?}");
    }
    assert!(place.path("seen").exists() && place.path("seen.tool").exists(), "nothing was started");
    let ours = ["url", "token", "fabricgate.toml", "seen.scontrol"];
    for file in files(&place.path("")) {
        let name = file.file_name().expect("a name").to_string_lossy().into_owned();
        let bytes = fs::read(&file).expect("readable");
        let text = match name.ends_with("gz") {
            false => bytes,
            true => {
                use std::io::Read;
                let mut text = Vec::new();
                let mut unpacked = flate2::read::GzDecoder::new(bytes.as_slice());
                unpacked.read_to_end(&mut text).expect("gzip");
                text
            }
        };
        let text = String::from_utf8_lossy(&text);
        if !ours.contains(&name.as_str()) {
            let line = text.lines().find(|line| line.contains(MARK));
            assert_eq!(line, None, "{} holds a secret", file.display());
        }
    }
    // A variable that steers a tool reaches it, through the worker that starts it.
    let tool = fs::read_to_string(place.path("seen.tool")).expect("it was started");
    for given in ["NCCL_DEBUG=WARN", "SITE_RAIL=rail0"] {
        assert!(tool.lines().any(|line| line == given), "{given}: {tool}");
    }
    // Slurm's own program may receive Slurm's token, and none of fabricgate's.
    let scontrol = fs::read_to_string(place.path("seen.scontrol")).expect("it was asked");
    assert!(scontrol.contains(&format!("SLURM_JWT={MARK}jwt")));
    assert!(!scontrol.contains(&format!("{MARK}hook")), "a configured address");
    assert!(!scontrol.contains(&format!("{MARK}variable")), "fabricgate's token");
}

#[test]
fn srun_passes_only_slurms_own_secret_to_nodes() {
    let place = site();
    place.program("srun", "env >> seen.srun; printf '%s\\n' \"$@\" >> seen.words; exit 1");
    place.program("salloc", "echo 'salloc: Granted job allocation 7' >&2");
    place.program("squeue", "echo '7 RUNNING'");
    let config = fs::read_to_string(place.path("fabricgate.toml")).expect("text");
    let config =
        config.replace("kind = \"command\"\ntemplate = [\"ssh\", \"{node}\"]", "kind = \"slurm\"");
    place.put("fabricgate.toml", config);
    place.put(
        "nodes.json",
        "{\"nodes\": [{\"name\": \"n1\", \"hostname\": \"n1\", \"state\": [\"IDLE\"]}]}",
    );
    place.program(
        "scontrol",
        "case \"$*\" in *ping*) echo 'Slurmctld(primary) at head is UP';; *json*) cat nodes.json;; esac",
    );
    place.run(&["audit", "--config", "fabricgate.toml"]);
    let Ok(seen) = fs::read_to_string(place.path("seen.srun")) else {
        // The stand-in for Slurm was rejected; the other test and `launch`'s check the claim, and
        // this test checks that the stand-in received nothing.
        panic!("srun was never started");
    };
    let secrets: BTreeSet<&str> = seen.lines().filter(|line| line.contains(MARK)).collect();
    let slurms = format!("SLURM_JWT={MARK}jwt");
    assert_eq!(secrets, BTreeSet::from([slurms.as_str()]));
    // Without this option srun passes its whole environment to a step.
    let words = fs::read_to_string(place.path("seen.words")).expect("it was called");
    let named = words.lines().find_map(|word| word.strip_prefix("--export="));
    let named: BTreeSet<&str> = named.expect("the option lists the variables").split(',').collect();
    assert!(named.contains("PATH") && named.contains("NCCL_DEBUG") && named.contains("SITE_RAIL"));
    let others = ["ALL", "SLURM_JWT", "SSH_AUTH_SOCK", "OPS_BEARER", "OPS_HOOK"];
    let secret = others.iter().chain(&OTHERS).find(|name| named.contains(**name));
    assert_eq!(secret, None, "{named:?}");
}
