//! A way to the server on which the weather is made: it counts what is asked, and
//! loses, delays, refuses or kills as it is told.
//!
//! Speaks plain HTTP on the loopback to whoever is tested, and HTTPS to the real
//! server; what it does not make itself, the real server answers.

#![allow(dead_code, reason = "not every test makes every weather")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use control::sources::tls;
use serde_json::{Value, json};

/// One question, as it came.
#[derive(Clone, Debug)]
pub(super) struct Call {
    /// From 1.
    pub(super) number: usize,
    pub(super) method: String,
    pub(super) path: String,
    pub(super) body: String,
    pub(super) token: String,
}

impl Call {
    /// A patch of a node's metadata and taints.
    pub(super) fn is_patch(&self) -> bool {
        self.method == "PATCH" && !self.path.contains("/status")
    }

    /// A patch of a node's condition.
    pub(super) fn is_status(&self) -> bool {
        self.method == "PATCH" && self.path.contains("/status")
    }

    /// About this node.
    pub(super) fn is_of(&self, node: &str) -> bool {
        let path = self.path.split('?').next().unwrap_or_default();
        path.split('/').any(|part| part == node)
    }
}

/// What becomes of one question.
pub(super) enum Weather {
    /// It is answered.
    Fine,
    /// It is answered after that time.
    Slow(Duration),
    /// Nobody hears it, and the connection is cut.
    Lost,
    /// It is heard, done and answered, and the connection is cut before the answer.
    LostAnswer,
    /// The same, after something else was done.
    LostAnswerThen(Box<dyn FnOnce() + Send>),
    /// The connection is cut, and so much later it is heard, where this says so.
    Late(Duration, Box<dyn FnOnce() -> bool + Send>),
    /// It is answered, and then this is done.
    FineThen(Box<dyn FnOnce() + Send>),
    /// Somebody else writes first: method, path and body, one after the other.
    Meanwhile(Vec<(&'static str, String, Value)>),
    /// This is answered instead.
    Answer(u16, Vec<(&'static str, &'static str)>),
}

type Rule = Box<dyn FnMut(&Call) -> Weather + Send>;

struct Sky {
    server: String,
    client: reqwest::Client,
    rule: Mutex<Rule>,
    /// What was asked, and what of that the server heard.
    asked: Mutex<Vec<Call>>,
    heard: Mutex<Vec<Call>>,
    /// Heard and answered.
    over: Mutex<usize>,
    /// On their way, with nobody left who waits for them.
    late: Mutex<usize>,
}

/// The way.
pub(super) struct Proxy {
    sky: Arc<Sky>,
    address: String,
    folder: PathBuf,
}

/// The value of a key in a kubeconfig of the laboratory.
fn field(text: &str, key: &str) -> String {
    let rest = text.split_once(&format!("{key}: ")).expect("the key").1;
    rest.split(['}', '\n', ',']).next().expect("a value").trim().trim_matches('"').to_owned()
}

impl Proxy {
    /// To the server of this kubeconfig; `folder` gets kubeconfigs that lead here.
    pub(super) fn to(kubeconfig: &Path, folder: &Path) -> Self {
        tls::install_provider();
        let text = fs::read_to_string(kubeconfig).expect("a kubeconfig");
        let authority = fs::read(field(&text, "certificate-authority")).expect("a certificate");
        let client = reqwest::Client::builder()
            .tls_certs_only(reqwest::Certificate::from_pem_bundle(&authority).expect("PEM"))
            .build()
            .expect("a client");
        let sky = Arc::new(Sky {
            server: field(&text, "server"),
            client,
            rule: Mutex::new(Box::new(|_| Weather::Fine)),
            asked: Mutex::default(),
            heard: Mutex::default(),
            over: Mutex::default(),
            late: Mutex::default(),
        });
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        listener.set_nonblocking(true).expect("set");
        let state = sky.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
                let router = Router::new().fallback(answer).with_state(state);
                axum::serve(listener, router).await.expect("served");
            });
        });
        let proxy = Self { sky, address, folder: folder.to_owned() };
        proxy.kubeconfig("admin", "token: admin-token");
        proxy
    }

    /// A kubeconfig that leads here, with these credentials.
    pub(super) fn kubeconfig(&self, user: &str, credentials: &str) -> PathBuf {
        let file = self.folder.join(format!("{user}.proxy.kubeconfig"));
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: lab\nclusters:\n- name: lab\n  cluster: \
             {{server: \"{}\"}}\ncontexts:\n- name: lab\n  context: {{cluster: lab, user: lab}}\n\
             users:\n- name: lab\n  user: {{{credentials}}}\n",
            self.address
        );
        fs::write(&file, text).expect("written");
        file
    }

    /// The weather from now on; what was asked before is forgotten.
    pub(super) fn weather(&self, rule: impl FnMut(&Call) -> Weather + Send + 'static) {
        *self.sky.rule.lock().expect("nobody panicked") = Box::new(rule);
        self.sky.asked.lock().expect("nobody panicked").clear();
        self.sky.heard.lock().expect("nobody panicked").clear();
        *self.sky.over.lock().expect("nobody panicked") = 0;
    }

    /// Every question since the weather changed.
    pub(super) fn asked(&self) -> Vec<Call> {
        self.sky.asked.lock().expect("nobody panicked").clone()
    }

    /// Those of them that the server heard.
    pub(super) fn heard(&self) -> Vec<Call> {
        self.sky.heard.lock().expect("nobody panicked").clone()
    }

    /// Whether something is on its way for which nobody waits any more.
    pub(super) fn is_late(&self) -> bool {
        0 < *self.sky.late.lock().expect("nobody panicked")
    }

    /// Waits until nothing is on its way but what is late.
    pub(super) fn quiet(&self) {
        for _ in 0..600 {
            let heard = self.sky.heard.lock().expect("nobody panicked").len();
            if heard == *self.sky.over.lock().expect("nobody panicked") {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("the server does not answer");
    }
}

/// Cuts the connection: its task ends, which is what an unwinding does without a
/// word, as no panic hook is asked.
fn cut() -> ! {
    std::panic::resume_unwind(Box::new("cut"))
}

async fn answer(State(sky): State<Arc<Sky>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let header = |name: &str| {
        let value = parts.headers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    let mut call = Call {
        number: 0,
        method: parts.method.to_string(),
        path,
        body: String::from_utf8_lossy(&body).into_owned(),
        token: header("authorization").trim_start_matches("Bearer ").to_owned(),
    };
    let weather = {
        let mut asked = sky.asked.lock().expect("nobody panicked");
        call.number = asked.len() + 1;
        asked.push(call.clone());
        drop(asked);
        (sky.rule.lock().expect("nobody panicked"))(&call)
    };
    let mut after: Option<Box<dyn FnOnce() + Send>> = None;
    let mut is_cut = false;
    let kind = header("content-type");
    match weather {
        Weather::Fine => {}
        Weather::Slow(time) => tokio::time::sleep(time).await,
        Weather::Lost => cut(),
        Weather::LostAnswer => is_cut = true,
        Weather::LostAnswerThen(then) => (after, is_cut) = (Some(then), true),
        Weather::FineThen(then) => {
            let sky = sky.clone();
            // Not before the answer has gone out.
            after = Some(Box::new(move || sky.later(then)));
        }
        Weather::Late(time, is_heard) => {
            *sky.late.lock().expect("nobody panicked") += 1;
            tokio::spawn(async move {
                tokio::time::sleep(time).await;
                if tokio::task::spawn_blocking(is_heard).await.unwrap_or(false) {
                    sky.ask(&call.method, &call.path, &kind, &call.token, body).await;
                }
                *sky.late.lock().expect("nobody panicked") -= 1;
            });
            cut()
        }
        Weather::Meanwhile(others) => {
            for (method, path, body) in others {
                let kind = if method == "PATCH" {
                    "application/merge-patch+json"
                } else {
                    "application/json"
                };
                let answer =
                    sky.ask(method, &path, kind, "admin-token", body.to_string().into()).await;
                let Some((status, said)) = answer else { panic!("{method} {path}: no answer") };
                assert!(
                    status < 300,
                    "{method} {path}: {status} {}",
                    String::from_utf8_lossy(&said)
                );
            }
        }
        Weather::Answer(status, headers) => {
            let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
                "status": "Failure", "code": status, "message": "the weather is bad"});
            let mut response = Response::builder().status(status);
            for (name, value) in headers {
                response = response.header(name, value);
            }
            return response.body(Body::from(body.to_string())).expect("a response");
        }
    }
    sky.heard.lock().expect("nobody panicked").push(call.clone());
    // Of its own: it goes on when whoever asked is killed.
    let asking = tokio::spawn(async move {
        let answer = sky.ask(&call.method, &call.path, &kind, &call.token, body).await;
        *sky.over.lock().expect("nobody panicked") += 1;
        if let Some(after) = after {
            after();
        }
        answer.filter(|_| !is_cut)
    });
    let Ok(Some((status, said))) = asking.await else { cut() };
    let response = Response::builder().status(status).header("content-type", "application/json");
    response.body(Body::from(said)).expect("a response")
}

impl Sky {
    /// Does this in a thread of its own, and counts it as on its way.
    fn later(self: Arc<Self>, work: Box<dyn FnOnce() + Send>) {
        *self.late.lock().expect("nobody panicked") += 1;
        std::thread::spawn(move || {
            work();
            *self.late.lock().expect("nobody panicked") -= 1;
        });
    }

    async fn ask(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        token: &str,
        body: axum::body::Bytes,
    ) -> Option<(u16, axum::body::Bytes)> {
        let method = reqwest::Method::from_bytes(method.as_bytes()).expect("a method");
        let request = self
            .client
            .request(method, format!("{}{path}", self.server))
            .header("content-type", if kind.is_empty() { "application/json" } else { kind })
            .header("accept", "application/json")
            .bearer_auth(token)
            .body(body);
        // A server that is gone answers nobody.
        let answer = request.send().await.ok()?;
        let status = answer.status().as_u16();
        Some((status, answer.bytes().await.ok()?))
    }
}
