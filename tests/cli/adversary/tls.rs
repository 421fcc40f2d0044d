//! Servers with a wrong certificate: self-signed, for another host, expired. Every TLS client
//! refuses them by default, before it sends anything; and a redirection carries no token
//! elsewhere.
//!
//! openssl makes the certificates; the tests print SKIPPED where it is missing.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::place::Place;

const TOKEN: &str = "s3cr3t-bearer";

/// Runs openssl here; false where it is missing.
#[expect(clippy::disallowed_methods, reason = "a test makes certificates")]
fn openssl(place: &Place, words: &str) -> bool {
    let mut command = Command::new("openssl");
    command.args(words.split(' ')).current_dir(place.path("")).stdout(Stdio::null());
    command.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// An authority and its certificates: a valid one, one for another host, an expired one; and a
/// self-signed one. `None` where openssl is missing.
#[expect(clippy::print_stderr, reason = "a test that checks nothing reports it")]
fn certificates(place: &Place) -> Option<()> {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    let made = openssl(
        place,
        &format!("req -x509 {key} -keyout ca.key -out ca.pem -days 2 -subj /CN=authority"),
    );
    if !made {
        eprintln!("SKIPPED: no openssl that makes certificates");
        return None;
    }
    let here = "subjectAltName=DNS:localhost,IP:127.0.0.1";
    for (name, names, days) in [
        ("good", here, "2"),
        ("elsewhere", "subjectAltName=DNS:other.example", "2"),
        ("expired", here, "-1"),
    ] {
        place.put("ext", format!("{names}\nbasicConstraints=CA:FALSE\n"));
        let asked = format!("req -new {key} -keyout {name}.key -out {name}.csr -subj /CN={name}");
        assert!(openssl(place, &asked), "{name}");
        let signed = format!(
            "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days {days} \
             -extfile ext -out {name}.pem"
        );
        assert!(openssl(place, &signed), "{name}");
    }
    let own = format!(
        "req -x509 {key} -keyout own.key -out own.pem -days 2 -subj /CN=localhost -addext {here}"
    );
    assert!(openssl(place, &own));
    Some(())
}

/// A server with such a certificate: its port, and the bytes that it received inside TLS.
fn server(place: &Place, name: &str, answer: String) -> (u16, Arc<Mutex<String>>) {
    let pem = |end: &str| fs::read(place.path(&format!("{name}.{end}"))).expect("made");
    let chain = vec![CertificateDer::from_pem_slice(&pem("pem")).expect("a certificate")];
    let key = PrivateKeyDer::from_pem_slice(&pem("key")).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("a certificate with its key");
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let received = Arc::new(Mutex::new(String::new()));
    let hears = Arc::clone(&received);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
            let connection = ServerConnection::new(Arc::clone(&config)).expect("a connection");
            let mut stream = StreamOwned::new(connection, stream);
            let mut buffer = [0; 16_384];
            if let Ok(count) = stream.read(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..count]).into_owned();
                hears.lock().expect("no holder panics").push_str(&text);
                let _ = stream.write_all(answer.as_bytes());
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        }
    });
    (port, received)
}

fn text_of(received: &Arc<Mutex<String>>) -> String {
    received.lock().expect("no holder panics").clone()
}

fn answer(status: &str, more: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{more}Content-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    )
}

/// A webhook at this port; `ca` lists the trusted certificates besides the system's.
fn webhook(place: &Place, port: u16, ca: &str) {
    place.put("token", TOKEN);
    let config = format!(
        "claims = \"claims.toml\"\n[notify]\nwithin_s = 5\n[[notify.target]]\nname = \"ops\"\n\
         kind = \"generic\"\nurl = \"https://localhost:{port}/hook\"\nbearer_file = \"token\"\n\
         attempts = 1\ntimeout_s = 4\n{ca}"
    );
    place.put("fabricgate.toml", config);
}

const OWN_CA: &str = "ca_file = \"ca.pem\"\n";

#[test]
fn webhooks_send_nothing_to_a_server_with_a_wrong_certificate() {
    let place = Place::new();
    if certificates(&place).is_none() {
        return;
    }
    let test = ["--config", "fabricgate.toml", "notify", "test"];
    for (name, ca) in
        [("own", ""), ("good", ""), ("own", OWN_CA), ("elsewhere", OWN_CA), ("expired", OWN_CA)]
    {
        let (port, received) = server(&place, name, answer("200 OK", "", "{}"));
        webhook(&place, port, ca);
        let ended = place.run(&test);
        assert_ne!(ended.code, Some(0), "{name}: {ended:?}");
        let output = (ended.stdout + &ended.stderr).to_lowercase();
        assert!(output.contains("certificate"), "{name}: {output}");
        assert_eq!(text_of(&received), "", "{name} received data");
    }
    // A valid server receives it: a client that refuses all of them proves nothing.
    let (port, received) = server(&place, "good", answer("200 OK", "", "{}"));
    webhook(&place, port, OWN_CA);
    let ended = place.run(&test);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(text_of(&received).contains(TOKEN));
}

#[test]
fn a_redirection_takes_the_token_nowhere() {
    let place = Place::new();
    if certificates(&place).is_none() {
        return;
    }
    let (elsewhere, received) = server(&place, "good", answer("200 OK", "", "{}"));
    for status in ["301 Moved Permanently", "302 Found", "307 Temporary Redirect", "308 Permanent"]
    {
        let to = format!("Location: https://127.0.0.1:{elsewhere}/x\r\n");
        let (port, first) = server(&place, "good", answer(status, &to, ""));
        webhook(&place, port, OWN_CA);
        let ended = place.run(&["--config", "fabricgate.toml", "notify", "test"]);
        assert_ne!(ended.code, Some(0), "{status}: {ended:?}");
        assert!(text_of(&first).contains(TOKEN), "{status}: the first one has a valid certificate");
        assert_eq!(text_of(&received), "", "{status} was followed");
    }
}

#[test]
fn slurmrestd_gets_a_request_only_with_a_valid_certificate() {
    let mut place = Place::new();
    if certificates(&place).is_none() {
        return;
    }
    place.env.insert("SLURM_JWT".to_owned(), TOKEN.to_owned());
    for (name, trusts) in
        [("own", false), ("good", false), ("elsewhere", true), ("expired", true), ("good", true)]
    {
        if trusts {
            let authority = place.path("ca.pem").display().to_string();
            place.env.insert("SSL_CERT_FILE".to_owned(), authority);
        }
        let (port, received) = server(&place, name, answer("500 Broken", "", "{}"));
        let ask = format!("slurmrestd=https://localhost:{port}");
        let ended = place.run(&["claims", "--from", &ask]);
        let is_right = name == "good" && trusts;
        assert_eq!(text_of(&received).contains(TOKEN), is_right, "{name}: {ended:?}");
        assert!(is_right || text_of(&received).is_empty(), "{name} received data");
    }
}

#[test]
fn the_api_server_gets_a_request_only_with_a_valid_certificate() {
    let mut place = Place::new();
    if certificates(&place).is_none() {
        return;
    }
    let kubeconfig = place.path("kubeconfig").display().to_string();
    place.env.insert("KUBECONFIG".to_owned(), kubeconfig);
    for (name, trusts) in
        [("own", false), ("good", false), ("elsewhere", true), ("expired", true), ("good", true)]
    {
        let (port, received) = server(&place, name, answer("500 Broken", "", "{}"));
        let authority = place.path("ca.pem").display().to_string();
        let authority =
            if trusts { format!("certificate-authority: {authority}, ") } else { String::new() };
        place.put(
            "kubeconfig",
            format!(
                "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
                 clusters: [{{name: c, cluster: {{{authority}server: 'https://localhost:{port}'}}}}]\n\
                 contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
                 users: [{{name: u, user: {{token: {TOKEN}}}}}]\n"
            ),
        );
        let ended = place.run(&["claims", "--from", "kubernetes"]);
        let is_right = name == "good" && trusts;
        assert_eq!(text_of(&received).contains(TOKEN), is_right, "{name}: {ended:?}");
        assert!(is_right || text_of(&received).is_empty(), "{name} received data");
    }
}
