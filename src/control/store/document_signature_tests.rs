//! A signature verifies for the document as it was read, and for no other; keys come from the real
//! openssl.

use std::process::Output;

use assert_cmd::Command;
use proptest::prelude::*;
use ring::signature::Ed25519KeyPair;
use serde_json::json;

use super::*;

fn generate_key() -> SigningKey {
    SigningKey::generate().expect("chance").0
}

/// A document with its signature in it, as a reader has it.
fn sign_document(mut document: Value, key: &SigningKey) -> Value {
    let signature = key.sign(&document).expect("json");
    document[SIGNATURE_FIELD] = serde_json::to_value(signature).expect("json");
    document
}

fn write_private_key(dir: &Path, name: &str, text: &str, mode: u32) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, text).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
    path
}

/// The real openssl; `None` if it is not installed.
fn run_openssl(args: &[&str], dir: &Path) -> Option<Output> {
    let mut command = Command::new("openssl");
    command.args(args).current_dir(dir);
    match command.output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            eprintln!("SKIPPED: openssl is not installed");
            None
        }
        Err(error) => panic!("openssl: {error}"),
    }
}

#[test]
fn the_signed_bytes_are_the_compact_document_without_its_signature_in_its_order() {
    let text = "{ \"z\": 1,\n \"signature\": {\"x\": 1}, \"a\": [0.1, 798.0], \"ü\": \"\\u00e4\" }";
    let value: Value = serde_json::from_str(text).expect("json");
    let bytes = String::from_utf8(signed_payload(&value)).expect("utf-8");
    assert_eq!(bytes, "{\"z\":1,\"a\":[0.1,798.0],\"ü\":\"ä\"}");
}

#[test]
fn a_change_anywhere_in_a_document_breaks_its_signature() {
    let key = generate_key();
    let keys = [key.public().clone()];
    let document =
        sign_document(json!({"node": "n1", "minima": [{"value": 798.25}], "new": null}), &key);
    let good = SignatureStatus::Valid(key.public().id().to_owned());
    assert_eq!(check_signature(&document, &keys), good);
    let wrong = SignatureStatus::Invalid(key.public().id().to_owned());
    let changed = |change: fn(&mut Value)| {
        let mut document = document.clone();
        change(&mut document);
        check_signature(&document, &keys)
    };
    assert_eq!(changed(|it| it["node"] = json!("n2")), wrong);
    assert_eq!(changed(|it| it["minima"][0]["value"] = json!(798.250_000_000_000_1)), wrong);
    assert_eq!(changed(|it| it["more"] = json!(1)), wrong, "an unknown field");
    assert_eq!(changed(|it| it["signature"]["value"] = json!("AAAA")), wrong);
    assert_eq!(changed(|it| it["signature"] = Value::Null), SignatureStatus::Unsigned);
    let gone = changed(|it| it["signature"]["key"] = json!("0000"));
    assert_eq!(gone, SignatureStatus::UnknownKey("0000".to_owned()));
    let other = changed(|it| it["signature"]["algorithm"] = json!("none"));
    assert!(matches!(other, SignatureStatus::Unreadable(why) if why.contains("\"ed25519\"")));
    let text = changed(|it| it["signature"] = json!("good"));
    assert!(matches!(text, SignatureStatus::Unreadable(_)));
    assert_eq!(check_signature(&document, &[generate_key().public().clone()]), {
        SignatureStatus::UnknownKey(key.public().id().to_owned())
    });
}

#[test]
fn unsigned_documents_are_refused_only_if_a_signature_is_required() {
    let key = generate_key();
    let keys = vec![key.public().clone()];
    let document = sign_document(json!({"a": 1}), &key);
    let mut edited = document.clone();
    edited["a"] = json!(2);
    let strict = SignatureTrust { keys, required: true };
    let lax = SignatureTrust { required: false, ..strict.clone() };
    let blind = SignatureTrust::default();
    for (document, is_lax, is_strict) in
        [(&document, true, true), (&edited, false, false), (&json!({"a": 1}), true, false)]
    {
        assert_eq!(lax.explain_refusal(document).is_none(), is_lax, "{document}");
        assert_eq!(strict.explain_refusal(document).is_none(), is_strict, "{document}");
        assert_eq!(blind.explain_refusal(document), None);
    }
    let other = sign_document(json!({"a": 1}), &generate_key());
    assert_eq!(lax.explain_refusal(&other), None);
    assert!(strict.explain_refusal(&other).expect("refused").contains("not trusted"));
}

#[test]
fn a_private_key_readable_by_others_is_refused_and_no_key_is_printed() {
    let dir = tempfile::tempdir().expect("a folder");
    let (key, text) = SigningKey::generate().expect("chance");
    let path = write_private_key(dir.path(), "key.pem", &text, 0o640);
    let message = SigningKey::read(&path).expect_err("open").to_string();
    assert!(message.contains("mode 640: others may read"), "{message}");
    let path = write_private_key(dir.path(), "key.pem", &text, 0o400);
    let read = SigningKey::read(&path).expect("its own");
    assert_eq!(read.public(), key.public());
    let body = text.lines().nth(1).expect("a line");
    let shown = format!("{read:?} {key:?}");
    assert!(!shown.contains(body) && shown.contains(key.public().id()), "{shown}");
}

#[test]
fn an_invalid_key_file_is_refused_without_quoting_its_content() {
    let dir = tempfile::tempdir().expect("a folder");
    let public = generate_key().public().to_pem();
    let of = |text: &str| {
        let path = write_private_key(dir.path(), "k", text, 0o600);
        SigningKey::read(&path).expect_err("not a key").to_string()
    };
    let secret = "hunter2-is-no-key";
    for text in
        ["", secret, &public, "-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n"]
    {
        let message = of(text);
        let is_explained = message.contains("expected") || message.contains("not an Ed25519 key");
        assert!(is_explained, "{message}");
        assert!(!message.contains("hunter2"), "{message}");
    }
    let path =
        write_private_key(dir.path(), "p", &SigningKey::generate().expect("chance").1, 0o600);
    let message = PublicKey::read(&path).expect_err("private").to_string();
    assert!(message.contains("BEGIN PUBLIC KEY"), "{message}");
    let message = SigningKey::read(dir.path()).expect_err("a folder").to_string();
    assert!(message.contains("not a regular file"), "{message}");
}

#[test]
fn a_version_2_key_of_ring_is_read() {
    let dir = tempfile::tempdir().expect("a folder");
    let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("chance");
    let path = write_private_key(
        dir.path(),
        "v2.pem",
        &encode_pem("PRIVATE KEY", document.as_ref()),
        0o600,
    );
    SigningKey::read(&path).expect("version 2");
}

#[test]
fn real_openssl_and_fabricgate_accept_each_others_keys_and_signatures() {
    let dir = tempfile::tempdir().expect("a folder");
    let at = |name: &str| dir.path().join(name);
    let genpkey = ["genpkey", "-algorithm", "ed25519", "-out", "theirs.pem"];
    let Some(made) = run_openssl(&genpkey, dir.path()) else { return };
    assert!(made.status.success(), "{made:?}");
    let run = |args: &[&str]| {
        let output = run_openssl(args, dir.path()).expect("it was there");
        assert!(output.status.success(), "{args:?}: {output:?}");
    };
    run(&["pkey", "-in", "theirs.pem", "-pubout", "-out", "theirs.pub"]);
    fs::set_permissions(at("theirs.pem"), fs::Permissions::from_mode(0o600)).expect("set");
    let theirs = SigningKey::read(&at("theirs.pem")).expect("openssl's key");
    assert_eq!(theirs.public(), &PublicKey::read(&at("theirs.pub")).expect("openssl's"));
    assert_eq!(theirs.public().to_pem(), fs::read_to_string(at("theirs.pub")).expect("text"));
    let (ours, text) = SigningKey::generate().expect("chance");
    write_private_key(dir.path(), "ours.pem", &text, 0o600);
    run(&["pkey", "-in", "ours.pem", "-pubout", "-out", "ours.pub"]);
    assert_eq!(ours.public(), &PublicKey::read(&at("ours.pub")).expect("openssl's"));
    for (key, public) in [(&theirs, "theirs.pub"), (&ours, "ours.pub")] {
        let document = sign_document(json!({"node": "n1", "value": 0.1}), key);
        let signature = document[SIGNATURE_FIELD]["value"].as_str().expect("text");
        fs::write(at("sig"), BASE64_STANDARD.decode(signature).expect("base64")).expect("written");
        fs::write(at("payload"), signed_payload(&document)).expect("written");
        let verify = ["pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", public];
        run(&[&verify[..], &["-in", "payload", "-sigfile", "sig"]].concat());
        fs::write(at("payload"), b"{}").expect("written");
        let args = [&verify[..], &["-in", "payload", "-sigfile", "sig"]].concat();
        assert!(!run_openssl(&args, dir.path()).expect("there").status.success());
    }
}

/// Any JSON, with floats of every size.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::hash_map(any::<String>(), inner, 0..5)
                .prop_map(|map| Value::from(map.into_iter().collect::<serde_json::Map<_, _>>())),
        ]
    })
}

proptest! {
    #[test]
    fn a_document_read_back_has_the_signed_bytes(
        fields in prop::collection::vec(("[a-z]{1,8}", any_json()), 0..6),
        is_pretty in any::<bool>(),
    ) {
        let key = generate_key();
        let document = Value::from(fields.into_iter().collect::<serde_json::Map<_, _>>());
        let document = sign_document(document, &key);
        let text = if is_pretty {
            serde_json::to_string_pretty(&document)
        } else {
            serde_json::to_string(&document)
        };
        let read: Value = serde_json::from_str(&text.expect("json")).expect("json");
        prop_assert_eq!(signed_payload(&read), signed_payload(&document));
        let good = SignatureStatus::Valid(key.public().id().to_owned());
        prop_assert_eq!(check_signature(&read, &[key.public().clone()]), good);
    }
}
