//! perftest's failure messages. Most of them go to standard error, and old versions still exit with
//! code 0.

use model::parse_output::OutputProblemKind;

/// The beginnings of messages after which a test did not run, or did not finish.
const BEGINNINGS: [&str; 30] = [
    "couldn't ",
    "can't produce a report",
    "failed ",
    "failed: ",
    "unable to ",
    "completion with error",
    "error ",
    "error:",
    "poll cq failed",
    "poll on send cq failed",
    "poll send cq error",
    "problem in ",
    "problems with ",
    "bad wc status",
    "ib device ",
    "no ib devices found",
    "did not detect devices",
    "did not get message",
    "found incompatibility issue",
    "function ",
    "rdma cm event error",
    "rdma_",
    "unexpected cm event",
    "bad event waiting",
    "test exited with error",
    "parser function exited with error",
    "link layer on port",
    "post send failed",
    "ethernet_read_",
    "accept() failed",
];

/// Beginnings that only mean a failure if the message contains this word.
const WITH_WORD: [(&str, &str); 3] =
    [("ib device ", "not found"), ("function ", "failed"), ("rdma_", "failed")];

/// Messages that no other tool prints.
const OWN: [&str; 14] = [
    "Couldn't connect to ",
    "Couldn't listen to port ",
    "Couldn't get context for the device",
    "Couldn't set the link layer",
    "Unable to init the socket connection",
    "Unable to find the Infiniband/RoCE device",
    "Unable to Connect the HCA's through the link",
    "Unable to create RDMA_CM resources",
    "Failed to exchange data between server and clients",
    "Failed to modify QP ",
    "Completion with error at ",
    "ethernet_read_keys: Couldn't read remote address",
    "* Waiting for client to connect... *",
    "Did not detect devices",
];

/// `enum ibv_wc_status` of libibverbs, in order.
const WORK_COMPLETION: [&str; 24] = [
    "IBV_WC_SUCCESS",
    "IBV_WC_LOC_LEN_ERR",
    "IBV_WC_LOC_QP_OP_ERR",
    "IBV_WC_LOC_EEC_OP_ERR",
    "IBV_WC_LOC_PROT_ERR",
    "IBV_WC_WR_FLUSH_ERR",
    "IBV_WC_MW_BIND_ERR",
    "IBV_WC_BAD_RESP_ERR",
    "IBV_WC_LOC_ACCESS_ERR",
    "IBV_WC_REM_INV_REQ_ERR",
    "IBV_WC_REM_ACCESS_ERR",
    "IBV_WC_REM_OP_ERR",
    "IBV_WC_RETRY_EXC_ERR",
    "IBV_WC_RNR_RETRY_EXC_ERR",
    "IBV_WC_LOC_RDD_VIOL_ERR",
    "IBV_WC_REM_INV_RD_REQ_ERR",
    "IBV_WC_REM_ABORT_ERR",
    "IBV_WC_INV_EECN_ERR",
    "IBV_WC_INV_EEC_STATE_ERR",
    "IBV_WC_FATAL_ERR",
    "IBV_WC_RESP_TIMEOUT_ERR",
    "IBV_WC_GENERAL_ERR",
    "IBV_WC_TM_ERR",
    "IBV_WC_TM_RNDV_INCOMPLETE",
];

#[derive(Debug, PartialEq, Eq)]
pub(super) struct PerftestFailure {
    pub(super) kind: OutputProblemKind,
    pub(super) code: Option<&'static str>,
}

/// The failure in this line, if any.
pub(super) fn parse_failure(text: &str) -> Option<PerftestFailure> {
    if let Some(verdict) = text.strip_prefix("VALIDATION: ") {
        return parse_validation(verdict);
    }
    let lower = text.to_ascii_lowercase();
    if lower.contains("warning") || lower.contains("changing to ") {
        return None;
    }
    let begins = BEGINNINGS.into_iter().find(|beginning| lower.starts_with(beginning));
    let means = begins.is_some_and(|beginning| {
        WITH_WORD.iter().all(|(other, word)| *other != beginning || lower.contains(word))
    });
    let port = lower.starts_with("port number ") && lower.contains(" state is ");
    let driver = lower.starts_with("mlx") && lower.contains("got completion with error");
    if !(means || port || driver || is_not_installed(text)) {
        return None;
    }
    Some(PerftestFailure { kind: OutputProblemKind::Error, code: work_completion_code(text) })
}

/// Whether only this tool prints such a line.
pub(super) fn is_perftest_message(text: &str) -> bool {
    let port = text.starts_with("Port number ") && text.contains(" state is ");
    let status = text.starts_with("Failed status ") && text.contains("wr_id");
    port || status || is_not_installed(text) || OWN.iter().any(|own| text.starts_with(own))
}

/// The shell's message for a missing binary.
fn is_not_installed(text: &str) -> bool {
    let named = ["ib_write_", "ib_read_", "ib_send_", "ib_atomic_", "raw_ethernet_"];
    let missing =
        text.ends_with("command not found") || text.ends_with("No such file or directory");
    missing && named.iter().any(|name| text.contains(name))
}

/// `--data_validation`: the tool's verdict on the data itself.
fn parse_validation(verdict: &str) -> Option<PerftestFailure> {
    let kind = if verdict.starts_with("FAILED") {
        OutputProblemKind::Corrupt
    } else if verdict.starts_with("WARNING") {
        OutputProblemKind::Unverified
    } else if verdict.starts_with("ERROR") {
        OutputProblemKind::Error
    } else {
        return None;
    };
    Some(PerftestFailure { kind, code: None })
}

/// `Failed status 12: wr_id 0 syndrom 0x81`.
fn work_completion_code(text: &str) -> Option<&'static str> {
    let (number, _) = text.strip_prefix("Failed status ")?.split_once(':')?;
    let number: usize = number.trim().parse().ok()?;
    WORK_COMPLETION.get(number).copied()
}
