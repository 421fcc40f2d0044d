//! A proxy to the server that injects faults: it counts requests, and loses, delays, refuses or
//! kills on demand.
//!
//! It speaks plain HTTP on the loopback to the client under test, and HTTPS to the real server;
//! the real server answers every request that the proxy does not.

#![allow(dead_code, reason = "not every test uses every fault")]

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

/// One request, as received.
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

    pub(super) fn is_of(&self, node: &str) -> bool {
        let path = self.path.split('?').next().unwrap_or_default();
        path.split('/').any(|part| part == node)
    }
}

/// The fate of one request.
pub(super) enum InjectedFault {
    /// It is answered.
    Fine,
    /// It is answered after that time.
    Slow(Duration),
    /// The server does not receive it, and the connection is cut.
    Lost,
    /// The server receives and processes it, and the connection is cut before the answer.
    LostAnswer,
    /// The same, after another action.
    LostAnswerThen(Box<dyn FnOnce() + Send>),
    /// The connection is cut, and the server receives it after this time, if the function agrees.
    Late(Duration, Box<dyn FnOnce() -> bool + Send>),
    /// It is answered, and then the action runs.
    FineThen(Box<dyn FnOnce() + Send>),
    /// Another client writes first: method, path and body, one after the other.
    Meanwhile(Vec<(&'static str, String, Value)>),
    /// The proxy answers with this instead.
    Answer(u16, Vec<(&'static str, &'static str)>),
}

type Rule = Box<dyn FnMut(&Call) -> InjectedFault + Send>;

struct Sky {
    server: String,
    client: reqwest::Client,
    rule: Mutex<Rule>,
    /// All requests, and those that the server received.
    asked: Mutex<Vec<Call>>,
    received: Mutex<Vec<Call>>,
    /// Received and answered.
    over: Mutex<usize>,
    /// In flight, without a client that waits.
    late: Mutex<usize>,
}

pub(super) struct Proxy {
    sky: Arc<Sky>,
    address: String,
    folder: PathBuf,
}

/// The value of a key in a kubeconfig of the lab.
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
            rule: Mutex::new(Box::new(|_| InjectedFault::Fine)),
            asked: Mutex::default(),
            received: Mutex::default(),
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

    /// The rule from now on; earlier requests are forgotten.
    pub(super) fn inject(&self, rule: impl FnMut(&Call) -> InjectedFault + Send + 'static) {
        *self.sky.rule.lock().expect("no thread panicked") = Box::new(rule);
        self.sky.asked.lock().expect("no thread panicked").clear();
        self.sky.received.lock().expect("no thread panicked").clear();
        *self.sky.over.lock().expect("no thread panicked") = 0;
    }

    /// Every request since the rule changed.
    pub(super) fn asked(&self) -> Vec<Call> {
        self.sky.asked.lock().expect("no thread panicked").clone()
    }

    /// Those of them that the server received.
    pub(super) fn received(&self) -> Vec<Call> {
        self.sky.received.lock().expect("no thread panicked").clone()
    }

    /// True if a request is in flight whose client is gone.
    pub(super) fn is_late(&self) -> bool {
        0 < *self.sky.late.lock().expect("no thread panicked")
    }

    /// Waits until only late requests are in flight.
    pub(super) fn quiet(&self) {
        for _ in 0..600 {
            let forwarded = self.sky.received.lock().expect("no thread panicked").len();
            if forwarded == *self.sky.over.lock().expect("no thread panicked") {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("the server does not answer");
    }
}

/// Cuts the connection: its task ends by unwinding, silently, since no panic hook runs.
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
    let fault = {
        let mut asked = sky.asked.lock().expect("no thread panicked");
        call.number = asked.len() + 1;
        asked.push(call.clone());
        drop(asked);
        (sky.rule.lock().expect("no thread panicked"))(&call)
    };
    let mut after: Option<Box<dyn FnOnce() + Send>> = None;
    let mut is_cut = false;
    let kind = header("content-type");
    match fault {
        InjectedFault::Fine => {}
        InjectedFault::Slow(time) => tokio::time::sleep(time).await,
        InjectedFault::Lost => cut(),
        InjectedFault::LostAnswer => is_cut = true,
        InjectedFault::LostAnswerThen(then) => (after, is_cut) = (Some(then), true),
        InjectedFault::FineThen(then) => {
            let sky = sky.clone();
            // Only after the answer has gone out.
            after = Some(Box::new(move || sky.later(then)));
        }
        InjectedFault::Late(time, is_heard) => {
            *sky.late.lock().expect("no thread panicked") += 1;
            tokio::spawn(async move {
                tokio::time::sleep(time).await;
                if tokio::task::spawn_blocking(is_heard).await.unwrap_or(false) {
                    sky.ask(&call.method, &call.path, &kind, &call.token, body).await;
                }
                *sky.late.lock().expect("no thread panicked") -= 1;
            });
            cut()
        }
        InjectedFault::Meanwhile(others) => {
            for (method, path, body) in others {
                let kind = if method == "PATCH" {
                    "application/merge-patch+json"
                } else {
                    "application/json"
                };
                let answer =
                    sky.ask(method, &path, kind, "admin-token", body.to_string().into()).await;
                let Some((status, answer_body)) = answer else {
                    panic!("{method} {path}: no answer")
                };
                assert!(
                    status < 300,
                    "{method} {path}: {status} {}",
                    String::from_utf8_lossy(&answer_body)
                );
            }
        }
        InjectedFault::Answer(status, headers) => {
            let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
                "status": "Failure", "code": status, "message": "injected fault"});
            let mut response = Response::builder().status(status);
            for (name, value) in headers {
                response = response.header(name, value);
            }
            return response.body(Body::from(body.to_string())).expect("a response");
        }
    }
    sky.received.lock().expect("no thread panicked").push(call.clone());
    // A separate task: it continues when the client is killed.
    let asking = tokio::spawn(async move {
        let answer = sky.ask(&call.method, &call.path, &kind, &call.token, body).await;
        *sky.over.lock().expect("no thread panicked") += 1;
        if let Some(after) = after {
            after();
        }
        answer.filter(|_| !is_cut)
    });
    let Ok(Some((status, answer_body))) = asking.await else { cut() };
    let response = Response::builder().status(status).header("content-type", "application/json");
    response.body(Body::from(answer_body)).expect("a response")
}

impl Sky {
    /// Runs this in its own thread, and counts it as in flight.
    fn later(self: Arc<Self>, work: Box<dyn FnOnce() + Send>) {
        *self.late.lock().expect("no thread panicked") += 1;
        std::thread::spawn(move || {
            work();
            *self.late.lock().expect("no thread panicked") -= 1;
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
        // A server that is gone does not answer.
        let answer = request.send().await.ok()?;
        let status = answer.status().as_u16();
        Some((status, answer.bytes().await.ok()?))
    }
}
