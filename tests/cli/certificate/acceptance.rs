//! Acceptance documents of burn-ins, verified by a party that was not present: signed and checked
//! by the real openssl, edited, incomplete, of other hardware.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::{Value, json};

use super::{fabricgate, program, public, site};

/// The folder of a burn-in over the rack of all tests, run once.
fn burnt_in() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let words = ["burn-in", "--rounds", "2", "--soak-minutes", "0", "--no-progress"];
        let more = ["--run-dir", "burnt-in", "--config", "fabricgate.toml"];
        let (code, stdout, stderr) = fabricgate(site(), &[&words[..], &more].concat());
        assert_eq!(code, Some(0), "{stdout}{stderr}");
        let folders = fs::read_dir(site().join("burnt-in")).expect("runs");
        let mut folders = folders.map(|it| it.expect("one").path());
        let is_it = |it: &PathBuf| it.join("acceptance.json").is_file();
        folders.find(is_it).expect("the folder of the burn-in")
    })
}

/// A copy of the folder with that document after a change.
fn changed(change: impl Fn(&mut Value)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let text = fs::read_to_string(burnt_in().join("acceptance.json")).expect("text");
    let mut value: Value = serde_json::from_str(&text).expect("JSON");
    change(&mut value);
    let text = serde_json::to_string_pretty(&value).expect("JSON");
    fs::write(folder.path().join("a.json"), text).expect("written");
    folder
}

/// The same as if nodes had been measured, without a signature.
fn unsigned(change: impl Fn(&mut Value)) -> tempfile::TempDir {
    changed(|it| {
        it["real"] = json!(true);
        drop(it.as_object_mut().expect("one").remove("signature"));
        change(it);
    })
}

/// The result of `verify` for `a.json`, and its reasons.
fn verify(folder: &Path, options: &[&str]) -> (Option<i32>, Value, String) {
    let args = ["--json", "certificate", "verify", "a.json"];
    let (code, stdout, stderr) = fabricgate(folder, &[&args[..], options].concat());
    let value: Value = serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{stdout}{stderr}"));
    let it = value["certificates"][0].clone();
    let why = it["why"].to_string();
    (code, it, why)
}

#[test]
fn a_burn_ins_signed_document_is_verified_by_file_and_by_folder() {
    let folder = burnt_in().display().to_string();
    let file = burnt_in().join("acceptance.json").display().to_string();
    let key = public();
    for name in [&folder, &file] {
        let args = ["certificate", "verify", name, "--config", "fabricgate.toml", "--key", &key];
        let (code, stdout, stderr) = fabricgate(site(), &args);
        assert_eq!(code, Some(0), "{stdout}{stderr}");
        assert!(stdout.starts_with("valid  acceptance of n[1-2], burn-in "), "{stdout}");
        assert!(stdout.contains("signature: good, by key"), "{stdout}");
    }
    // Simulated nodes accept nothing unless the configuration counts them.
    let (code, it, why) = verify(changed(|_| {}).path(), &["--key", &key]);
    assert_eq!((code, &it["kind"]), (Some(4), &json!("acceptance")), "{it}");
    assert_eq!(it["nodes"], json!(["n1", "n2"]));
    assert!(why.contains("no real node was measured"), "{why}");
    let (code, stdout, _) = fabricgate(site(), &["certificate", "show", &folder]);
    assert_eq!(code, Some(4), "{stdout}");
    assert!(stdout.contains("the acceptance of a burn-in, which `certificate verify` reads"));
}

#[test]
fn real_openssl_verifies_what_we_sign_and_we_what_it_signs() {
    let folder = changed(|_| {});
    let put = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
    let read = || {
        let text = fs::read_to_string(folder.path().join("a.json")).expect("text");
        serde_json::from_str::<Value>(&text).expect("JSON")
    };
    let payload = || {
        let args = ["certificate", "show", "--payload", "a.json"];
        let (code, payload, stderr) = fabricgate(folder.path(), &args);
        assert_eq!(code, Some(0), "{stderr}");
        put("payload", &payload);
    };
    let openssl = |args: &[&str]| program("openssl", folder.path(), args);
    payload();
    let signature = read()["signature"]["value"].as_str().expect("a signature").to_owned();
    put("signature.b64", &format!("{signature}\n"));
    if let Err(error) = openssl(&["base64", "-d", "-in", "signature.b64", "-out", "signature"]) {
        eprintln!("SKIPPED: openssl: {error}");
        return;
    }
    let (key, private) = (public(), site().join("key.pem").display().to_string());
    let verify_args = ["pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", &key];
    let files = ["-sigfile", "signature", "-in", "payload"];
    let good = openssl(&[&verify_args[..], &files].concat()).expect("it was there");
    assert!(good.status.success(), "{good:?}");
    // A document of real nodes, which openssl signs: the key is given to openssl only.
    let mut real = read();
    real["real"] = json!(true);
    put("a.json", &real.to_string());
    payload();
    let sign = ["pkeyutl", "-sign", "-rawin", "-inkey", &private, "-in", "payload"];
    let signed = openssl(&[&sign[..], &["-out", "signature"]].concat()).expect("it was there");
    assert!(signed.status.success(), "{signed:?}");
    let encode = ["base64", "-A", "-in", "signature", "-out", "signature.b64"];
    assert!(openssl(&encode).expect("it was there").status.success());
    let value = fs::read_to_string(folder.path().join("signature.b64")).expect("text");
    real["signature"]["value"] = json!(value.trim());
    put("a.json", &real.to_string());
    let (code, it, _) = verify(folder.path(), &["--key", &key]);
    assert_eq!((code, &it["outcome"]), (Some(0), &json!("valid")), "{it}");
}

#[test]
fn an_edited_document_or_one_with_an_unknown_signer_does_not_count() {
    let key = public();
    for change in [
        (|it: &mut Value| it["nodes"][0]["rounds"] = json!(9)) as fn(&mut Value),
        |it| it["real"] = json!(true),
        |it| it["asked"]["drift"] = json!(0.9),
        |it| it["what_a_newer_program_says"] = json!(true),
    ] {
        let (code, it, why) = verify(changed(change).path(), &["--key", &key]);
        assert_eq!(code, Some(3), "{it}");
        assert!(why.contains("does not match the document"), "{why}");
    }
    let bare = unsigned(|_| {});
    assert_eq!(verify(bare.path(), &[]).0, Some(4), "a file without a signature");
    assert_eq!(verify(bare.path(), &["--unsigned"]).0, Some(0));
    let (code, _, why) = verify(bare.path(), &["--key", &key]);
    assert!(code == Some(4) && why.contains("it is not signed"), "{why}");
    let other_site = tempfile::tempdir().expect("a folder");
    fabricgate(other_site.path(), &["certificate", "keygen", "other"]);
    let other = other_site.path().join("other.pub").display().to_string();
    let (code, _, why) = verify(changed(|_| {}).path(), &["--key", &other]);
    assert!(code == Some(4) && why.contains("not one of the given keys"), "{why}");
    let (code, _, stderr) =
        fabricgate(bare.path(), &["certificate", "verify", "a.json", "--key", "a.json"]);
    assert!(code == Some(2) && stderr.contains("BEGIN PUBLIC KEY"), "{stderr}");
}

#[test]
fn a_documents_own_limits_may_prevent_acceptance() {
    for (change, code, expected) in [
        (
            (|it: &mut Value| {
                it["accepted"] = json!("fail");
                it["nodes"][1]["accepted"] = json!("fail");
                it["nodes"][1]["reason"] = json!("round 2: slow");
            }) as fn(&mut Value),
            3,
            "not accepted: n2: round 2: slow",
        ),
        (
            |it| it["nodes"][1]["accepted"] = json!("fail"),
            3,
            "overall result is pass, but the result of its nodes",
        ),
        (|it| it["ended"] = json!("2999-01-01T00:00:00Z"), 3, "in the future"),
        (|it| it["created"] = json!("yesterday"), 3, "is not a timestamp"),
        (|it| it["state"] = json!("partial"), 4, "did not run to completion"),
        (
            |it| {
                it["accepted"] = json!("unknown");
                it["nodes"][0]["accepted"] = json!("unknown");
            },
            4,
            "unknown: n1: ",
        ),
        (|it| it["nodes"] = json!([]), 3, "the result of its nodes is unknown"),
    ] {
        let (found, it, why) = verify(unsigned(change).path(), &["--unsigned"]);
        assert_eq!(found, Some(code), "{expected}: {it}");
        assert!(why.contains(expected), "{expected}: {why}");
    }
    let newer = changed(|it| it["format"] = json!("fabricgate.acceptance/2"));
    let (code, it, why) = verify(newer.path(), &[]);
    assert!(code == Some(2) && why.contains("a.json: written by a newer fabricgate"), "{it}");
    let torn = changed(|_| {});
    let file = torn.path().join("a.json");
    let text = fs::read_to_string(&file).expect("text");
    fs::write(&file, &text[..text.len() / 2]).expect("written");
    let (code, it, why) = verify(torn.path(), &[]);
    assert!(code == Some(2) && why.contains("a.json:"), "{it}");
    fs::write(&file, "{\"format\": \"fabricgate.acceptance/1\"}").expect("written");
    let (code, it, why) = verify(torn.path(), &[]);
    assert!(code == Some(2) && why.contains("missing field"), "{it}");
}

#[test]
fn replaced_gpus_are_reported_by_node_and_a_boot_revokes_nothing() {
    let folder = unsigned(|it| {
        for node in it["rounds"][1]["nodes"].as_array_mut().expect("nodes") {
            let name = node["node"].as_str().expect("a name").to_owned();
            node["gpus"] = json!([format!("GPU-{name}-0"), format!("GPU-{name}-1")]);
            node["boot_id"] = json!("b-1");
        }
    });
    let facts = |name: &str, host: &str, uuids: [&str; 2], boot: &str| {
        let gpus = json!([{"index": 0, "uuid": uuids[0]}, {"index": 1, "uuid": uuids[1]}]);
        let facts = json!({"format": "fabricgate.node-facts/1", "hostname": host,
                           "boot_id": boot, "gpus": gpus});
        fs::write(folder.path().join(name), facts.to_string()).expect("written");
    };
    facts("1.json", "n1", ["GPU-n1-0", "GPU-n1-1"], "b-2");
    facts("2.json", "n2.example", ["GPU-n2-0", "GPU-n2-1"], "b-1");
    facts("z.json", "n2", ["GPU-n2-0", "GPU-z"], "b-1");
    facts("e.json", "elsewhere", ["GPU-n1-0", "GPU-n1-1"], "b-1");
    let against = ["--unsigned", "--against", "1.json", "--against", "2.json"];
    let (code, it, _) = verify(folder.path(), &against);
    assert_eq!(code, Some(0), "{it}");
    assert_eq!(it["same"], json!(["n1: gpus", "n2: gpus", "n2: boot"]));
    assert_eq!(
        (&it["differs"][0]["part"], &it["differs"][0]["voids"]),
        (&json!("n1: boot"), &json!(false))
    );
    let (code, it, why) =
        verify(folder.path(), &["--unsigned", "--against", "1.json", "--against", "z.json"]);
    assert_eq!(code, Some(3), "{it}");
    assert!(why.contains("n2: ") && why.contains("GPU"), "{why}");
    let (code, _, why) = verify(folder.path(), &["--unsigned", "--against", "e.json"]);
    assert!(code == Some(4) && why.contains("no machine could be compared"), "{why}");
}
