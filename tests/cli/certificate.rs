//! Certificates as an operator uses them: issued by a burn-in over a simulated rack, signed,
//! shown, verified, edited, expired, and compared with machines.

mod acceptance;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::OnceLock;

use serde_json::{Value, json};

const RACK: &str = "title = \"a rack\"\nseed = 7\n[noise]\nsigma = 0.002\n\
    [[domain]]\nname = \"rack\"\nnodes = \"n[1-2]\"\nplatform = \"gb200-nvl72\"\n";

/// Simulated runs certify only where the site's configuration allows it, which exists for this
/// purpose.
const CONFIG: &str = "run_dir = \"runs\"\n[launcher]\nkind = \"sim\"\nscenario = \"rack.toml\"\n\
    [probes]\nrun = [\"nvidia-smi-q\", \"nvbandwidth-ce\", \"nvbandwidth-lane\"]\n\
    [policy]\nsimulated = true\ncertificate_days_burn_in = 30\n\
    [certificates]\nkey = \"key.pem\"\n";

/// Exit code, standard output, standard error.
fn fabricgate(folder: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let output = program(env!("CARGO_BIN_EXE_fabricgate"), folder, args).expect("the program");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[expect(clippy::disallowed_methods, reason = "a test is not part of the program")]
fn program(name: &str, folder: &Path, args: &[&str]) -> std::io::Result<Output> {
    let mut command = std::process::Command::new(name);
    command.args(args).current_dir(folder).env_remove("FABRICGATE_CONFIG").env("NO_COLOR", "1");
    command.output()
}

/// A rack that was burnt in once for all tests here: its folder.
fn site() -> &'static Path {
    static SITE: OnceLock<tempfile::TempDir> = OnceLock::new();
    let site = SITE.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("rack.toml"), RACK).expect("written");
        fs::write(folder.path().join("fabricgate.toml"), CONFIG).expect("written");
        let (code, stdout, stderr) =
            fabricgate(folder.path(), &["certificate", "keygen", "key.pem"]);
        assert_eq!(code, Some(0), "{stdout}{stderr}");
        let args = ["burn-in", "--config", "fabricgate.toml", "--no-progress"];
        let (code, stdout, stderr) = fabricgate(folder.path(), &args);
        assert_eq!(code, Some(0), "{stdout}{stderr}");
        assert!(stderr.contains("certificates of n[1-2] in runs/"), "{stderr}");
        folder
    });
    site.path()
}

/// The certificate of the first node.
fn issued() -> PathBuf {
    let mut runs =
        fs::read_dir(site().join("runs")).expect("runs").map(|it| it.expect("one").path());
    runs.find(|run| run.is_dir()).expect("a run").join("certificates/n1.json")
}

/// A copy of the folder with that certificate after a change.
fn changed(change: impl Fn(&mut Value)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let text = fs::read_to_string(issued()).expect("text");
    let mut value: Value = serde_json::from_str(&text).expect("JSON");
    change(&mut value);
    let text = serde_json::to_string_pretty(&value).expect("JSON");
    fs::write(folder.path().join("n1.json"), text).expect("written");
    folder
}

fn public() -> String {
    site().join("key.pem.pub").display().to_string()
}

/// Verifies `n1.json` with the key of the site and these options.
fn verify(folder: &Path, options: &[&str]) -> (Option<i32>, Value) {
    let key = public();
    let args = ["--json", "certificate", "verify", "n1.json", "--key", &key];
    let (code, stdout, stderr) = fabricgate(folder, &[&args[..], options].concat());
    let value = serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{stdout}{stderr}"));
    (code, value)
}

fn why(verified: &Value) -> String {
    verified["certificates"][0]["why"].to_string()
}

#[test]
fn a_burn_ins_certificates_are_shown_and_verified() {
    let config = ["--config", "fabricgate.toml"];
    let with = |args: &[&str]| fabricgate(site(), &[args, &config[..]].concat());
    let (code, stdout, stderr) = with(&["certificate", "show"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.starts_with("2 certificates: 2 valid\n"), "{stdout}");
    let (code, stdout, _) = with(&["certificate", "show", "n1"]);
    assert_eq!(code, Some(0));
    for part in ["n1: valid", "(burn-in)", "signature   of key ", "GB/s", "boot "] {
        assert!(stdout.contains(part), "{part:?} is not in\n{stdout}");
    }
    let (code, stdout, _) = with(&["--json", "certificate", "show", "--all"]);
    let all: Value = serde_json::from_str(&stdout).expect("one document");
    assert_eq!((code, &all["format"]), (Some(0), &json!("fabricgate.certificates/1")));
    let first = &all["certificates"][0];
    assert_eq!((&first["node"], &first["standing"]), (&json!("n1"), &json!("valid")));
    let ratio = first["worst_ratio"].as_f64().expect("a number");
    assert!(0.9 < ratio && ratio < 1.1, "{ratio}");
    let certificate = &first["certificate"];
    let lasts = |it: &Value| {
        it["expires_unix"].as_i64().expect("a number") - it["issued_unix"].as_i64().expect("one")
    };
    assert_eq!(lasts(certificate), 30 * 86_400, "the days of this profile");
    let (code, stdout, _) = with(&["certificate", "verify", "n[1-2]", "--require-signature"]);
    assert_eq!(code, Some(0), "{stdout}");
    assert_eq!(stdout.matches("signature: good, by key").count(), 2, "{stdout}");
    let (code, _, stderr) = with(&["certificate", "show", "n1", "n7"]);
    assert_eq!(code, Some(4), "{stderr}");
    let (code, stdout, _) = with(&["certificate", "verify", "n7"]);
    assert_eq!(code, Some(4));
    assert!(stdout.contains("it has no certificate"), "{stdout}");
}

#[test]
fn the_run_of_certificates_is_named_as_every_run_is() {
    let folder = issued().ancestors().nth(2).expect("a run").to_owned();
    let id = folder.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
    let reason = format!("fabricgate:nvlink-low:{id} e7");
    let path = folder.display().to_string();
    for run in [path.as_str(), &id, "latest", &reason] {
        for command in ["show", "verify"] {
            let args = ["--config", "fabricgate.toml", "certificate", command, "n1", "--run", run];
            let (code, stdout, stderr) = fabricgate(site(), &args);
            assert_eq!(code, Some(0), "{args:?}: {stderr}");
            assert!(stdout.contains("n1") && stdout.contains(&id), "{args:?}: {stdout}");
        }
    }
    let args =
        ["--config", "fabricgate.toml", "certificate", "show", "--run", "20200101-000000-ab"];
    let (code, _, stderr) = fabricgate(site(), &args);
    assert_eq!(code, Some(5), "{stderr}");
}

#[test]
fn real_openssl_verifies_what_the_payload_prints() {
    let folder = changed(|_| {});
    let (code, payload, _) =
        fabricgate(folder.path(), &["certificate", "show", "--payload", "n1.json"]);
    assert_eq!(code, Some(0));
    let text = fs::read_to_string(folder.path().join("n1.json")).expect("text");
    let value: Value = serde_json::from_str(&text).expect("JSON");
    let signature = value["signature"]["value"].as_str().expect("a signature");
    let put = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
    put("payload", &payload);
    put("signature.b64", &format!("{signature}\n"));
    let decode = ["base64", "-d", "-in", "signature.b64", "-out", "signature"];
    if let Err(error) = program("openssl", folder.path(), &decode) {
        eprintln!("SKIPPED: openssl: {error}");
        return;
    }
    let key = public();
    let args = ["pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", &key, "-sigfile", "signature"];
    let verify = || {
        let args = [&args[..], &["-in", "payload"]].concat();
        program("openssl", folder.path(), &args).expect("it was there")
    };
    let good = verify();
    assert!(good.status.success(), "{good:?}");
    put("payload", &payload.replace("\"n1\"", "\"n2\""));
    assert!(!verify().status.success());
}

#[test]
fn an_edited_certificate_does_not_fit_its_signature_and_an_unsigned_one_is_reported() {
    assert_eq!(verify(changed(|_| {}).path(), &[]).0, Some(0));
    for change in [
        (|it: &mut Value| it["expires_unix"] = json!(4_000_000_000_i64)) as fn(&mut Value),
        |it| it["minima"][0]["value"] = json!(999.9),
        |it| it["what_a_newer_program_says"] = json!(true),
    ] {
        let (code, verified) = verify(changed(change).path(), &[]);
        assert_eq!(code, Some(3), "{verified}");
        assert!(why(&verified).contains("does not match the document"), "{verified}");
    }
    let unsigned = changed(|it| drop(it.as_object_mut().expect("one").remove("signature")));
    let (code, verified) = verify(unsigned.path(), &[]);
    assert_eq!((code, &verified["outcome"]), (Some(4), &json!("unknown")));
    assert!(why(&verified).contains("it is not signed"), "{verified}");
    let bare = |folder: &Path| fabricgate(folder, &["certificate", "verify", "n1.json"]).0;
    assert_eq!(bare(unsigned.path()), Some(4), "a file without a signature has no known author");
    let taken = ["certificate", "verify", "n1.json", "--unsigned"];
    assert_eq!(fabricgate(unsigned.path(), &taken).0, Some(0));
    assert_eq!(bare(changed(|_| {}).path()), Some(4), "signed, and no key is given");
    let edited = changed(|it| it["minima"][0]["value"] = json!(999.9));
    assert_eq!(bare(edited.path()), Some(4), "edited, and no key is given");
    let other_site = tempfile::tempdir().expect("a folder");
    fabricgate(other_site.path(), &["certificate", "keygen", "other"]);
    let other = other_site.path().join("other.pub").display().to_string();
    let args = ["certificate", "verify", "n1.json", "--key", &other];
    let (code, stdout, _) = fabricgate(changed(|_| {}).path(), &args);
    assert_eq!(code, Some(4), "{stdout}");
    assert!(stdout.contains("not one of the given keys"), "{stdout}");
}

#[test]
fn an_expired_or_revoked_certificate_is_not_valid() {
    let unsigned = |it: &mut Value| drop(it.as_object_mut().expect("one").remove("signature"));
    let expired = changed(|it| {
        unsigned(it);
        it["expires_unix"] = json!(it["issued_unix"]);
    });
    let args = ["certificate", "verify", "n1.json", "--unsigned"];
    let (code, stdout, _) = fabricgate(expired.path(), &args);
    assert_eq!(code, Some(3), "{stdout}");
    assert!(stdout.contains("expired 20"), "{stdout}");
    let voided = changed(|it| {
        unsigned(it);
        it["voided"] = json!({"at": "2026-03-04T05:06:07Z", "why": "run r9 found it at fault"});
    });
    let (code, verified) = verify(voided.path(), &[]);
    assert_eq!(code, Some(3), "{verified}");
    assert!(why(&verified).contains("found it at fault"), "{verified}");
    let (code, stdout, _) = fabricgate(voided.path(), &["certificate", "show", "n1.json"]);
    assert_eq!(code, Some(0));
    assert!(stdout.contains("n1: void"), "{stdout}");
}

#[test]
fn another_machine_is_identified_by_the_part_that_differs() {
    let gpus = json!(["GPU-a", "GPU-b"]);
    let identity = json!({"gpus": gpus, "driver": "580.65.06", "boot_id": "b-1",
                          "firmware": {"GPU 0 VBIOS": "96.1"}});
    let folder = changed(|it| {
        it["identity"] = identity.clone();
        drop(it.as_object_mut().expect("one").remove("signature"));
    });
    let against = |uuid: &str, driver: &str, boot: Option<&str>| {
        let facts = json!({
            "format": "fabricgate.node-facts/1", "hostname": "elsewhere", "boot_id": boot,
            "driver": {"version": driver},
            "gpus": [{"index": 0, "uuid": "GPU-a", "vbios": "96.1"},
                     {"index": 1, "uuid": uuid}],
        });
        fs::write(folder.path().join("facts.json"), facts.to_string()).expect("written");
        let args =
            ["--json", "certificate", "verify", "n1.json", "--unsigned", "--against", "facts.json"];
        let (code, stdout, stderr) = fabricgate(folder.path(), &args);
        let value: Value =
            serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{stdout}{stderr}"));
        (code, value["certificates"][0].clone())
    };
    let (code, same) = against("GPU-b", "580.65.06", Some("b-1"));
    assert_eq!(code, Some(0), "{same}");
    assert_eq!(same["same"], json!(["gpus", "driver", "boot", "firmware of GPU 0 VBIOS"]));
    for (uuid, driver, boot, part) in [
        ("GPU-z", "580.65.06", Some("b-1"), "gpus"),
        ("GPU-b", "590.1", Some("b-1"), "driver"),
        ("GPU-b", "580.65.06", Some("b-2"), "boot"),
    ] {
        let (code, other) = against(uuid, driver, boot);
        assert_eq!((code, &other["differs"][0]["part"]), (Some(3), &json!(part)), "{other}");
    }
    let (code, untold) = against("GPU-b", "580.65.06", None);
    assert_eq!((code, &untold["untold"]), (Some(0), &json!(["boot"])));
    let empty_facts = json!({"format": "fabricgate.node-facts/1"}).to_string();
    fs::write(folder.path().join("facts.json"), empty_facts).expect("written");
    let args = ["certificate", "verify", "n1.json", "--unsigned", "--against", "facts.json"];
    let (code, stdout, _) = fabricgate(folder.path(), &args);
    assert_eq!(code, Some(4), "{stdout}");
    assert!(stdout.contains("nothing identifies it as the certified machine"), "{stdout}");
    // Another machine of the same image: the driver is the same, and it reports no GPU.
    let image = json!({"format": "fabricgate.node-facts/1", "hostname": "n9",
                       "driver": {"version": "580.65.06"}});
    fs::write(folder.path().join("facts.json"), image.to_string()).expect("written");
    let (code, stdout, _) = fabricgate(folder.path(), &args);
    assert_eq!(code, Some(4), "{stdout}");
    assert!(stdout.contains("could be compared"), "{stdout}");
    // This machine certified itself as both simulated nodes: its boot is the same.
    let args = ["certificate", "verify", "--unsigned", "--here"];
    let issued = issued().display().to_string();
    let (code, stdout, _) = fabricgate(folder.path(), &[&args[..], &[&issued]].concat());
    assert_eq!(code, Some(0), "{stdout}");
    assert!(stdout.contains("same: ") && stdout.contains("boot"), "{stdout}");
}

#[test]
fn unreadable_input_is_reported_with_its_file_and_the_expected_value() {
    let newer = changed(|it| it["format"] = json!("fabricgate.certificate/2"));
    let key = public();
    let (code, stdout, _) =
        fabricgate(newer.path(), &["certificate", "verify", "n1.json", "--key", &key]);
    assert_eq!(code, Some(2), "{stdout}");
    assert!(stdout.contains("n1.json") && stdout.contains("newer fabricgate"), "{stdout}");
    let torn = changed(|_| {});
    fs::write(torn.path().join("n1.json"), "{\"format\": \"fabricgate.cert").expect("written");
    let (code, stdout, _) = fabricgate(torn.path(), &["certificate", "show", "n1.json"]);
    assert_eq!(code, Some(4), "{stdout}");
    assert!(stdout.contains("unreadable"), "{stdout}");
    let (code, _, _) = fabricgate(torn.path(), &["certificate", "verify", "./none.json"]);
    assert_eq!(code, Some(5));
    let (code, _, stderr) = fabricgate(torn.path(), &["certificate", "show"]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("--config FILE, --state DIR, --run RUN"), "{stderr}");
    let args = ["certificate", "show", "--state", "nowhere"];
    assert_eq!(fabricgate(torn.path(), &args).0, Some(5));
    let args = ["certificate", "verify", "n1.json", "--key", "n1.json"];
    let (code, _, stderr) = fabricgate(torn.path(), &args);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("BEGIN PUBLIC KEY"), "{stderr}");
}

#[test]
fn a_key_is_made_once_and_only_its_owner_may_read_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let keygen = || fabricgate(folder.path(), &["certificate", "keygen", "k"]);
    let (code, stdout, stderr) =
        fabricgate(folder.path(), &["certificate", "keygen", "k", "--json"]);
    assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
    assert!(stderr.contains("--json: ") && !folder.path().join("k").exists(), "{stderr}");
    let (code, stdout, stderr) = keygen();
    assert_eq!(code, Some(0), "{stderr}");
    let mode = |name: &str| {
        fs::metadata(folder.path().join(name)).expect("there").permissions().mode() & 0o777
    };
    assert_eq!(mode("k"), 0o600);
    let private = fs::read_to_string(folder.path().join("k")).expect("text");
    let secret = private.lines().nth(1).expect("a line");
    assert!(!stdout.contains(secret));
    let (code, _, stderr) = keygen();
    assert_eq!(code, Some(2));
    assert!(stderr.contains("keys are not overwritten"), "{stderr}");
    assert_eq!(fs::read_to_string(folder.path().join("k")).expect("text"), private);
}

#[test]
fn a_key_that_others_may_read_signs_nothing_and_the_run_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("rack.toml"), RACK).expect("written");
    let config = CONFIG.replace(
        "[\"nvidia-smi-q\", \"nvbandwidth-ce\", \"nvbandwidth-lane\"]",
        "[\"nvbandwidth-ce\"]",
    );
    fabricgate(folder.path(), &["certificate", "keygen", "key.pem"]);
    let open = fs::Permissions::from_mode(0o644);
    fs::set_permissions(folder.path().join("key.pem"), open).expect("set");
    let text = fs::read_to_string(folder.path().join("key.pem")).expect("text");
    let secret = text.lines().nth(1).expect("a line").to_owned();
    for (required, issued) in [(false, true), (true, false)] {
        let config = format!("{config}require_signature = {required}\n");
        fs::write(folder.path().join("fabricgate.toml"), config).expect("written");
        let args = ["recertify", "n1", "--config", "fabricgate.toml", "--no-progress"];
        let (code, _, stderr) = fabricgate(folder.path(), &args);
        assert_ne!(code, Some(5), "the run goes on: {stderr}");
        assert!(stderr.contains("mode 644: others may read this private key"), "{stderr}");
        assert!(!stderr.contains(&secret));
        assert_eq!(stderr.contains("certificates of n1 in"), issued && code == Some(0), "{stderr}");
    }
}
