//! Selection of a GPU to blame instead of its node, and the text about a GPU that an earlier
//! version took out.

use super::*;
use crate::policy::fixture::finding;
use model::kubernetes_node::KubernetesNode;

const NODE: &str = "d0n0";

fn found(gpu: Option<u32>, class: &str) -> Finding {
    let mut finding = finding(NODE, class, Outcome::Failed, 0.3);
    finding.locus.gpu = gpu;
    finding.id = format!("{class}-{gpu:?}");
    finding.confirmed = true;
    finding
}

fn uuids() -> BTreeMap<u32, &'static str> {
    BTreeMap::from([(0, "GPU-0a"), (1, "GPU-1a"), (2, "GPU-2a"), (3, "GPU-3a")])
}

#[test]
fn one_known_gpu_is_blamed_or_the_reason_is_given() {
    let node = NodeName::from(NODE);
    let bad = found(Some(2), "nvlink-absent");
    let of = |findings: &[&Finding], uuids: &BTreeMap<u32, &str>, claimed| {
        of_findings(&node, findings, uuids, claimed)
    };
    assert_eq!(of(&[&bad], &uuids(), Some(4)), Ok(Some((2, "GPU-2a".to_owned()))));
    assert_eq!(of(&[], &uuids(), Some(4)), Ok(None));
    let (other, nic, gone) =
        (found(Some(1), "p2p-low"), found(None, "nic-low"), found(Some(2), "gpu-missing"));
    let without = |index: u32, with: Option<&'static str>| {
        let mut all = uuids();
        all.remove(&index);
        all.extend(with.map(|uuid| (index, uuid)));
        all
    };
    for (words, findings, uuids, claimed) in [
        ("more than one", vec![&bad, &other], uuids(), Some(4)),
        ("blames no single GPU", vec![&bad, &nic], uuids(), Some(4)),
        ("missing GPU cannot be taken out", vec![&bad, &gone], uuids(), Some(4)),
        ("UUID of GPU 2", vec![&bad], without(2, None), None),
        ("not a GPU's UUID", vec![&bad], without(2, Some("MIG-1/2")), Some(4)),
        ("two of its GPUs", vec![&bad], without(1, Some("GPU-2a")), Some(4)),
        ("are claimed", vec![&bad], uuids(), Some(8)),
    ] {
        let why = of(&findings, &uuids, claimed).expect_err(words);
        assert!(why.contains(words), "{words}: {why}");
    }
}

#[test]
fn any_annotation_text_names_a_gpu_or_nothing() {
    let mark = GpuCordon { way: GpuCordonMethod::TaintRule, index: 2, uuid: "GPU-2a".to_owned() };
    assert_eq!(GpuCordon::from_annotation("taint-rule:2:GPU-2a"), Some(mark));
    for text in ["", "x", "taint-rule:2", "taint-rule:-1:GPU-a", "hami:0:GPU-a,GPU-b", "hami:0:a/b"]
    {
        assert_eq!(GpuCordon::from_annotation(text), None, "{text}");
    }
}

#[test]
fn a_gpu_taken_out_by_an_earlier_version_is_reported_with_its_remedy() {
    let with = |text: Option<&str>| {
        let annotations = text.map(|text| (DEVICE.to_owned(), text.to_owned())).into_iter();
        let seen = KubernetesNode {
            uid: "u-1".to_owned(),
            annotations: annotations.collect(),
            ..KubernetesNode::default()
        };
        SchedulerNode { kubernetes: Some(Box::new(seen)), ..SchedulerNode::new("n1", &["IDLE"]) }
    };
    let message = left_out(&with(Some("taint-rule:2:GPU-2A"))).expect("told");
    assert!(message.contains("GPU 2 (GPU-2A, taint-rule)"), "{message}");
    assert!(message.contains("kubectl delete devicetaintrule fabricgate-u-1-gpu-2a`"), "{message}");
    assert!(message.ends_with("`kubectl annotate node n1 fabricgate.io/device-`"), "{message}");
    let message = left_out(&with(Some("hami:0:GPU-0a"))).expect("told");
    assert!(
        message.contains("remove GPU-0a from its annotation hami.io/device-cordon"),
        "{message}"
    );
    assert_eq!(left_out(&with(Some("x"))), None);
    assert_eq!(left_out(&with(None)), None);
    assert_eq!(left_out(&SchedulerNode::new("n1", &["IDLE"])), None);
}
