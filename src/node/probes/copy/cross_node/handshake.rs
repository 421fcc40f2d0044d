//! Messages between processes that measure together.
//!
//! Defines the types and their conversion to and from exchange values. A process does not interpret
//! messages of another version; that peer does not participate.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::window::CopySpan;
use crate::ffi::cuda::FABRIC_HANDLE_BYTES;
use crate::probes::task::{CopyTask, CrossNodePairs};

/// Protocol version; incremented when a message changes its meaning.
const PROTOCOL_VERSION: u32 = 1;

/// Maximum characters of a reason to pass on.
const MAX_REASON_CHARS: usize = 400;

/// A process's introduction, with the memory of its GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PeerHello {
    language: u32,
    work: AgreedParameters,
    /// Its GPUs in the order of their indices.
    pub(super) gpus: Vec<PeerHelloGpu>,
    /// Why it does not participate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) trouble: Option<String>,
}

/// Parameters that must be equal on all processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct AgreedParameters {
    tests: Vec<String>,
    readings: u32,
    buffer_bytes: u64,
    copies: u32,
    across: Option<CrossNodePairs>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PeerHelloGpu {
    /// Index on the node.
    pub(super) gpu: u32,
    pub(super) bus_id: Option<String>,
    pub(super) name: Option<String>,
    /// Its memory, or why it has none.
    pub(super) memory: Result<FabricMemoryOffer, String>,
}

/// Memory that others may import.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FabricMemoryOffer {
    /// The handle, base64 (RFC 4648 section 4).
    handle: String,
    /// Total bytes.
    pub(super) bytes: usize,
    /// Offset of the half that copies write to.
    pub(super) sink: usize,
}

impl FabricMemoryOffer {
    pub(super) fn new(handle: [u8; FABRIC_HANDLE_BYTES], bytes: usize, sink: usize) -> Self {
        Self { handle: STANDARD.encode(handle), bytes, sink }
    }

    /// The decoded handle; `None` if it is invalid.
    pub(super) fn decode_handle(&self) -> Option<[u8; FABRIC_HANDLE_BYTES]> {
        STANDARD.decode(&self.handle).ok()?.try_into().ok()
    }
}

impl PeerHello {
    pub(super) fn new(task: &CopyTask, gpus: Vec<PeerHelloGpu>) -> Self {
        Self {
            language: PROTOCOL_VERSION,
            work: AgreedParameters::from_task(task),
            gpus,
            trouble: None,
        }
    }

    /// The introduction of a process that does not participate.
    pub(super) fn new_refusal(task: &CopyTask, why: &str) -> Self {
        Self { trouble: Some(why.to_owned()), ..Self::new(task, Vec::new()) }
    }

    /// Converts it to an exchange value.
    pub(super) fn to_value(&self) -> Value {
        serde_json::to_value(self).expect("plain data")
    }

    /// Parses a peer's introduction; an error is why the peer cannot participate.
    pub(super) fn from_value(value: &Value, task: &CopyTask) -> Result<Self, String> {
        let language = value.get("language").and_then(Value::as_u64);
        if language != Some(PROTOCOL_VERSION.into()) {
            return Err("it runs another version of fabricgate".to_owned());
        }
        let hello: Self = serde_json::from_value(value.clone())
            .map_err(|_| "its list of GPUs is unreadable".to_owned())?;
        if let Some(why) = hello.trouble {
            return Err(why.chars().take(MAX_REASON_CHARS).collect());
        }
        if hello.work != AgreedParameters::from_task(task) {
            return Err("it runs a different measurement".to_owned());
        }
        let fits = |gpu: &PeerHelloGpu| {
            let bytes = usize::try_from(task.buffer_bytes).unwrap_or(usize::MAX);
            let offer = gpu.memory.as_ref();
            offer.map_or(true, |it| {
                bytes <= it.sink && it.sink.checked_add(bytes).is_some_and(|end| end <= it.bytes)
            })
        };
        if !hello.gpus.iter().all(fits) {
            return Err("its memory is smaller than the copies".to_owned());
        }
        Ok(hello)
    }
}

impl AgreedParameters {
    fn from_task(task: &CopyTask) -> Self {
        Self {
            tests: task.tests.clone(),
            readings: task.readings,
            buffer_bytes: task.buffer_bytes,
            copies: task.copies,
            across: task.across,
        }
    }
}

/// A process's value in every later exchange.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct PeerReport {
    /// Its ranks that can no longer be measured, with the reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) lost: BTreeMap<u32, String>,
    /// Pairs of its rank and a rank whose memory it cannot access.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) unreached: Vec<(u32, u32)>,
    /// When the last window of its streams will close, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) closes_ms: Option<f64>,
    /// Duration of its last exchange in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) exchange_ms: Option<f64>,
    /// Time span of its copies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) span: Option<CopySpan>,
    /// Copies (from, to) that wrote wrong data to its memory, with the difference.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) wrong: Vec<(u32, u32, String)>,
    /// Copies (from, to) whose data is correct.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) right: Vec<(u32, u32)>,
}

impl PeerReport {
    /// Converts it to an exchange value.
    pub(super) fn to_value(&self) -> Value {
        serde_json::to_value(self).expect("plain data")
    }

    pub(super) fn from_value(value: &Value) -> Result<Self, String> {
        serde_json::from_value(value.clone()).map_err(|_| "its report is unreadable".to_owned())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::PathBuf;

    use super::*;

    pub(in super::super) fn task() -> CopyTask {
        CopyTask {
            cuda: None,
            root: PathBuf::from("/"),
            node: "n0".to_owned(),
            gpus: Vec::new(),
            tests: vec!["multinode_bisect_write_ce".to_owned()],
            readings: 1,
            buffer_bytes: 1 << 20,
            copies: 4,
            warmup: 1,
            warmup_ms: 0,
            across: Some(CrossNodePairs::Lane),
        }
    }

    fn hello(task: &CopyTask, offer: FabricMemoryOffer) -> PeerHello {
        let memory = Ok(offer);
        PeerHello::new(task, vec![PeerHelloGpu { gpu: 0, bus_id: None, name: None, memory }])
    }

    #[test]
    fn messages_survive_the_conversion_to_values() {
        let task = task();
        let handle = [7; FABRIC_HANDLE_BYTES];
        let sent = hello(&task, FabricMemoryOffer::new(handle, 4 << 20, 2 << 20));
        let read = PeerHello::from_value(&sent.to_value(), &task).expect("parsed");
        assert_eq!(read, sent);
        let offer = read.gpus[0].memory.as_ref().expect("an offer");
        assert_eq!(offer.decode_handle(), Some(handle));
        let report = PeerReport { wrong: vec![(0, 1, "bad".to_owned())], ..PeerReport::default() };
        assert_eq!(PeerReport::from_value(&report.to_value()), Ok(report));
        assert_eq!(
            PeerReport::from_value(&Value::Null),
            Err("its report is unreadable".to_owned())
        );
    }

    #[test]
    fn a_peer_with_another_measurement_does_not_participate() {
        let mine = task();
        let other = CopyTask { buffer_bytes: 1 << 19, ..mine.clone() };
        let offer = FabricMemoryOffer::new([0; FABRIC_HANDLE_BYTES], 4 << 20, 2 << 20);
        let why = PeerHello::from_value(&hello(&other, offer).to_value(), &mine)
            .expect_err("another size");
        assert_eq!(why, "it runs a different measurement");
        let small = FabricMemoryOffer::new([0; FABRIC_HANDLE_BYTES], 1 << 20, 1 << 20);
        let why =
            PeerHello::from_value(&hello(&mine, small).to_value(), &mine).expect_err("too small");
        assert_eq!(why, "its memory is smaller than the copies");
        let endless = FabricMemoryOffer::new([0; FABRIC_HANDLE_BYTES], 1, usize::MAX);
        assert!(PeerHello::from_value(&hello(&mine, endless).to_value(), &mine).is_err());
        for value in [Value::Null, Value::from(3), serde_json::json!({"language": 2})] {
            let why = PeerHello::from_value(&value, &mine).expect_err("another version");
            assert_eq!(why, "it runs another version of fabricgate");
        }
        let value = serde_json::json!({"language": 1, "gpus": "many"});
        assert!(PeerHello::from_value(&value, &mine).is_err());
    }
}
