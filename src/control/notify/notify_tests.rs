//! Messages to receivers that are slow, missing or many, and the record of deliveries.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use wiremock::matchers::any;
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::*;
use crate::notify::secret::Secret;
use engine::report::notice::NoticeItem;

const SLOW: Duration = Duration::from_millis(600);

async fn receiver(answer: ResponseTemplate) -> MockServer {
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(answer).mount(&server).await;
    server
}

fn target(name: &str, server: &MockServer) -> NotifyTarget {
    NotifyTarget {
        name: name.to_owned(),
        kind: NotifyTargetKind::Generic,
        address: SecretSource::Inline(Secret::from(server.uri())),
        bearer: None,
        ca_file: None,
        on: BTreeSet::from([NoticeEvent::Failed]),
        timeout: Duration::from_secs(30),
        attempts: 1,
        per_hour: 12,
    }
}

fn notify(targets: Vec<NotifyTarget>) -> NotifySettings {
    let within = Duration::from_secs(30);
    NotifySettings { site: None, targets, within, resolve_after: Duration::from_secs(60) }
}

fn occasion() -> NoticeOccasion {
    let item = NoticeItem {
        key: "node/n1".to_owned(),
        event: NoticeEvent::Failed,
        node: Some("n1".into()),
        domain: None,
        class: None,
        ratio_of: None,
        ratio: None,
        what: "a GPU is gone".to_owned(),
        how: String::new(),
        done: None,
        next: None,
    };
    NoticeOccasion { items: vec![item], ..NoticeOccasion::default() }
}

fn at(unix: i64) -> ClockStamp {
    ClockStamp { at: "2026-03-04T05:06:07Z".to_owned(), unix, boot: String::new(), uptime_s: 0.0 }
}

fn store(folder: &Path) -> NotifyStateStore {
    NotifyStateStore { folder: folder.to_owned() }
}

#[tokio::test]
async fn the_record_is_unlocked_during_a_delivery_and_no_message_is_sent_twice() {
    let server = receiver(ResponseTemplate::new(200).set_delay(SLOW)).await;
    let folder = tempfile::tempdir().expect("a folder");
    let (store, notify) = (store(folder.path()), notify(vec![target("ops", &server)]));
    let (occasion, now) = (occasion(), at(1_772_600_767));
    let telling = NotifyRequest { settings: &notify, occasion: &occasion, now: &now, seed: 1 };
    let read_state = async {
        while server.received_requests().await.expect("they are kept").is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let taken = store.lock_state(Duration::ZERO).await.expect("the record is unlocked");
        taken.notified.targets["ops"].delivering_until
    };
    let (first, second, until) =
        tokio::join!(send_notices(&telling, &store), send_notices(&telling, &store), read_state);
    assert_eq!((first, second), (vec![], vec![]));
    assert!(until.is_some_and(|until| now.unix < until), "{until:?}");
    assert_eq!(server.received_requests().await.expect("they are kept").len(), 1);
    let known = store.lock_state(Duration::ZERO).await.expect("free").notified;
    assert_eq!(known.targets["ops"].delivering_until, None);
    assert!(known.targets["ops"].delivered.contains_key("node/n1"));
}

#[tokio::test]
async fn a_dead_process_blocks_a_receiver_only_until_its_time_is_over() {
    let server = receiver(ResponseTemplate::new(200)).await;
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(folder.path());
    let mut notify = notify(vec![target("ops", &server), target("free", &server)]);
    notify.within = Duration::from_millis(200);
    let occasion = occasion();
    let mut taken = store.lock_state(Duration::ZERO).await.expect("free");
    let gone = engine::report::notice::changes::ReceiverState {
        delivering_until: Some(1_000_020),
        ..Default::default()
    };
    taken.notified.targets = BTreeMap::from([("ops".to_owned(), gone)]);
    store.save(&taken).expect("written");
    drop(taken);
    let notes = async |unix: i64| {
        let now = at(unix);
        send_notices(
            &NotifyRequest { settings: &notify, occasion: &occasion, now: &now, seed: 1 },
            &store,
        )
        .await
    };
    // The other receiver gets the message anyway.
    assert_eq!(notes(1_000_000).await, ["ops: another process is sending to it, for too long"]);
    assert_eq!(server.received_requests().await.expect("they are kept").len(), 1);
    assert_eq!(notes(1_000_021).await, Vec::<String>::new());
    assert_eq!(server.received_requests().await.expect("they are kept").len(), 2);
}
