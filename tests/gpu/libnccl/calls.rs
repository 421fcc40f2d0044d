//! The exported calls, as `nccl.h` declares them.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use crate::communicator::{
    Communicator, DESCRIPTION, IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, SUCCESS,
};
use crate::meeting;
use crate::operation::{Kind, Message};

/// Communicators by handle, which is the index in this list plus one.
static ALL: Mutex<Vec<Arc<Communicator>>> = Mutex::new(Vec::new());

/// This thread's open group.
#[derive(Debug, Default)]
struct Group {
    depth: u32,
    comm: usize,
    stream: usize,
    to: Vec<Message>,
    from: Vec<Message>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::new(Group::default());
}

/// `ncclUniqueId`.
#[repr(C)]
pub struct UniqueId([u8; 128]);

/// `ncclConfig_t`, the fields in use.
#[repr(C)]
pub struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

fn of(comm: usize) -> Option<Arc<Communicator>> {
    ALL.lock().expect("no thread panics").get(comm.checked_sub(1)?).cloned()
}

fn keep(communicator: Arc<Communicator>) -> usize {
    let mut all = ALL.lock().expect("no thread panics");
    all.push(communicator);
    all.len()
}

#[allow(non_snake_case, reason = "the name is NCCL's")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> c_int {
    unsafe { version.write(DESCRIPTION.get(&["nccl", "version"]).unwrap_or(22_803)) };
    SUCCESS
}

#[allow(non_snake_case, reason = "the name is NCCL's")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetErrorString(code: c_int) -> *const c_char {
    let text = if code == SUCCESS { c"all is well" } else { c"something is wrong" };
    text.as_ptr()
}

#[allow(non_snake_case, reason = "the name is NCCL's")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetLastError(_comm: usize) -> *const c_char {
    c"the stub is configured to fail".as_ptr()
}

#[allow(non_snake_case, reason = "the name is NCCL's")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> c_int {
    let folder = meeting::folder();
    let path = folder.as_os_str().as_bytes();
    let mut bytes = [0; 128];
    if bytes.len() <= path.len() {
        return INVALID_USAGE;
    }
    bytes[..path.len()].copy_from_slice(path);
    unsafe { id.write(UniqueId(bytes)) };
    SUCCESS
}

fn made(ranks: c_int, id: &UniqueId, rank: c_int, is_blocking: bool) -> Result<usize, c_int> {
    let (Ok(ranks), Ok(rank)) = (u32::try_from(ranks), u32::try_from(rank)) else {
        return Err(INVALID_ARGUMENT);
    };
    if ranks <= rank {
        return Err(INVALID_ARGUMENT);
    }
    let path: Vec<u8> = id.0.iter().copied().take_while(|byte| *byte != 0).collect();
    let folder = PathBuf::from(std::ffi::OsStr::from_bytes(&path));
    Ok(keep(Communicator::new(folder, rank, ranks, is_blocking)?))
}

#[allow(non_snake_case, reason = "the name is NCCL's")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRank(
    comm: *mut usize,
    ranks: c_int,
    id: UniqueId,
    rank: c_int,
) -> c_int {
    match made(ranks, &id, rank, true) {
        Err(code) => code,
        Ok(handle) => {
            unsafe { comm.write(handle) };
            of(handle).map_or(INVALID_ARGUMENT, |it| it.connect())
        }
    }
}

#[allow(non_snake_case, reason = "the name is NCCL's")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    comm: *mut usize,
    ranks: c_int,
    id: UniqueId,
    rank: c_int,
    config: *const Config,
) -> c_int {
    let config = unsafe { &*config };
    if config.magic != 0xcafe_beef || config.size < size_of::<Config>() {
        return INVALID_ARGUMENT;
    }
    // The variable overrides the caller.
    let is_blocking =
        config.blocking == 1 || std::env::var("NCCL_COMM_BLOCKING").is_ok_and(|it| it == "1");
    match made(ranks, &id, rank, is_blocking) {
        Err(code) => code,
        Ok(handle) => {
            unsafe { comm.write(handle) };
            let Some(communicator) = of(handle) else { return INVALID_ARGUMENT };
            if is_blocking {
                return communicator.connect();
            }
            std::thread::spawn(move || communicator.connect());
            IN_PROGRESS
        }
    }
}

#[allow(non_snake_case, reason = "the name is NCCL's")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(comm: usize, code: *mut c_int) -> c_int {
    let Some(communicator) = of(comm) else { return INVALID_ARGUMENT };
    unsafe { code.write(communicator.state()) };
    SUCCESS
}

#[allow(non_snake_case, reason = "the name is NCCL's")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommFinalize(comm: usize) -> c_int {
    of(comm).map_or(INVALID_ARGUMENT, |it| it.state())
}

#[allow(non_snake_case, reason = "the name is NCCL's")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommDestroy(comm: usize) -> c_int {
    of(comm).map_or(INVALID_ARGUMENT, |_| SUCCESS)
}

#[allow(non_snake_case, reason = "the name is NCCL's")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommAbort(comm: usize) -> c_int {
    let Some(communicator) = of(comm) else { return INVALID_ARGUMENT };
    communicator.abort();
    SUCCESS
}

#[allow(non_snake_case, reason = "the name is NCCL's")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommCount(comm: usize, count: *mut c_int) -> c_int {
    let Some(communicator) = of(comm) else { return INVALID_ARGUMENT };
    unsafe { count.write(communicator.meeting.ranks.cast_signed()) };
    SUCCESS
}

// nccl.h: ncclFloat32, ncclSum. Others are not simulated.
const FLOAT32: c_int = 7;
const SUM: c_int = 0;

fn start(
    comm: usize,
    kind: Kind,
    places: (*const c_void, *mut c_void),
    count: usize,
    is_known: bool,
    stream: usize,
) -> c_int {
    let Some(communicator) = of(comm).filter(|_| is_known) else { return INVALID_ARGUMENT };
    communicator.start(kind, (places.0 as usize, places.1 as usize), count, stream)
}

#[allow(non_snake_case, reason = "the name is NCCL's")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllReduce(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    kind: c_int,
    op: c_int,
    comm: usize,
    stream: usize,
) -> c_int {
    let is_known = kind == FLOAT32 && op == SUM;
    start(comm, Kind::AllReduce, (send, receive), count, is_known, stream)
}

#[allow(non_snake_case, reason = "the name is NCCL's")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllGather(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    kind: c_int,
    comm: usize,
    stream: usize,
) -> c_int {
    start(comm, Kind::AllGather, (send, receive), count, kind == FLOAT32, stream)
}

#[allow(non_snake_case, reason = "the name is NCCL's")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclReduceScatter(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    kind: c_int,
    op: c_int,
    comm: usize,
    stream: usize,
) -> c_int {
    let is_known = kind == FLOAT32 && op == SUM;
    start(comm, Kind::ReduceScatter, (send, receive), count, is_known, stream)
}

#[allow(non_snake_case, reason = "the name is NCCL's")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclBroadcast(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    kind: c_int,
    root: c_int,
    comm: usize,
    stream: usize,
) -> c_int {
    let Ok(root) = u32::try_from(root) else { return INVALID_ARGUMENT };
    start(comm, Kind::Broadcast { root }, (send, receive), count, kind == FLOAT32, stream)
}

/// Adds a message to this thread's group.
fn message(
    comm: usize,
    stream: usize,
    kind: c_int,
    peer: c_int,
    put: impl FnOnce(&mut Group, u32),
) -> c_int {
    let Ok(peer) = u32::try_from(peer) else { return INVALID_ARGUMENT };
    let is_known = of(comm).is_some_and(|it| peer < it.meeting.ranks) && kind == FLOAT32;
    GROUP.with_borrow_mut(|group| {
        // Alone it would wait for its counterpart for ever.
        if !is_known || group.depth == 0 {
            return INVALID_USAGE;
        }
        (group.comm, group.stream) = (comm, stream);
        put(group, peer);
        SUCCESS
    })
}

#[allow(non_snake_case, reason = "the name is NCCL's")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclSend(
    send: *const c_void,
    count: usize,
    kind: c_int,
    peer: c_int,
    comm: usize,
    stream: usize,
) -> c_int {
    let place = send as usize;
    message(comm, stream, kind, peer, |group, peer| group.to.push(Message { peer, place, count }))
}

#[allow(non_snake_case, reason = "the name is NCCL's")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclRecv(
    receive: *mut c_void,
    count: usize,
    kind: c_int,
    peer: c_int,
    comm: usize,
    stream: usize,
) -> c_int {
    let place = receive as usize;
    message(comm, stream, kind, peer, |group, peer| group.from.push(Message { peer, place, count }))
}

#[allow(non_snake_case, reason = "the name is NCCL's")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupStart() -> c_int {
    GROUP.with_borrow_mut(|group| group.depth += 1);
    SUCCESS
}

#[allow(non_snake_case, reason = "the name is NCCL's")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupEnd() -> c_int {
    let group = GROUP.with_borrow_mut(|group| {
        group.depth = group.depth.checked_sub(1)?;
        (group.depth == 0).then(|| std::mem::take(group))
    });
    let Some(group) = group else { return INVALID_USAGE };
    let Some(communicator) = of(group.comm) else { return SUCCESS };
    let count = group.to.iter().map(|it| it.count).sum();
    let kind = Kind::Messages { to: group.to, from: group.from };
    communicator.start(kind, (0, 0), count, group.stream)
}
