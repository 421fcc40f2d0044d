//! Memory of the host and of GPUs, all of it real. A GPU's memory is an unnamed file, so that
//! another process on this machine can map it while its owner runs, and the system frees it when
//! both have ended.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;

use crate::codes;
use crate::rates::Place;

/// Granularity of fabric memory, as on all GPUs so far.
pub const GRANULARITY: u64 = 2 << 20;

unsafe extern "C" {
    fn mmap(
        at: *mut c_void,
        bytes: usize,
        prot: c_int,
        flags: c_int,
        fd: c_int,
        off: i64,
    ) -> *mut c_void;
    fn munmap(at: *mut c_void, bytes: usize) -> c_int;
    fn memfd_create(name: *const std::ffi::c_char, flags: u32) -> c_int;
}

// sys/mman.h of Linux.
const NONE: c_int = 0;
const READ_WRITE: c_int = 3;
const SHARED: c_int = 1;
const PRIVATE: c_int = 2;
const FIXED: c_int = 0x10;
const ANONYMOUS: c_int = 0x20;
const NO_RESERVE: c_int = 0x4000;
const CLOSE_ON_EXEC: u32 = 1;

/// Origin of a range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Host,
    Allocated,
    Opened,
    Mapped,
}

/// A range of addresses with memory behind it.
#[derive(Debug)]
pub struct Region {
    pub bytes: u64,
    pub place: Place,
    pub origin: Origin,
    /// The GPUs of this node that may use it, where access was set.
    pub allowed: BTreeSet<u32>,
    /// The GPU in whose context it was allocated, which frees it at its end.
    context: Option<u32>,
    file: Option<File>,
}

/// Physical memory, by handle.
#[derive(Debug)]
pub struct Physical {
    pub bytes: u64,
    pub place: Place,
    own: bool,
    file: File,
}

/// Content of a handle for another process, in its 64 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub fabric: bool,
    pub process: u32,
    file: u32,
    /// Distinguishes the file from a later one with the same number.
    inode: u64,
    bytes: u64,
    gpu: u32,
    pub clique: i32,
    node: String,
}

/// First bytes of a [`Token`].
const MAGIC: &[u8; 4] = b"FgSt";
/// Room for a node's name, in bytes.
const NODE_BYTES: usize = 27;

impl Token {
    pub fn bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4] = u8::from(self.fabric);
        bytes[5..9].copy_from_slice(&self.process.to_le_bytes());
        bytes[9..13].copy_from_slice(&self.file.to_le_bytes());
        bytes[13..21].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[21..25].copy_from_slice(&self.gpu.to_le_bytes());
        bytes[25..29].copy_from_slice(&self.clique.to_le_bytes());
        let node = self.node.as_bytes();
        let length = node.len().min(NODE_BYTES);
        bytes[29..37].copy_from_slice(&self.inode.to_le_bytes());
        bytes[37..37 + length].copy_from_slice(&node[..length]);
        bytes
    }

    pub fn of(bytes: &[u8; 64]) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
        let node: Vec<u8> = bytes[37..].iter().copied().take_while(|byte| *byte != 0).collect();
        (bytes[..4] == *MAGIC).then(|| Self {
            fabric: bytes[4] == 1,
            process: word(5),
            file: word(9),
            inode: long(29),
            bytes: long(13),
            gpu: word(21),
            clique: word(25).cast_signed(),
            node: String::from_utf8_lossy(&node).into_owned(),
        })
    }

    /// The memory that a token names, while its process runs.
    fn open(&self) -> Result<File, i32> {
        let path = format!("/proc/{}/fd/{}", self.process, self.file);
        let opened = File::options().read(true).write(true).open(path);
        let same = opened.ok().filter(|file| {
            file.metadata().is_ok_and(|it| it.ino() == self.inode && it.len() == self.bytes)
        });
        same.ok_or(codes::INVALID_HANDLE)
    }

    fn place(&self) -> Place {
        Place::Gpu { node: self.node.clone(), gpu: self.gpu }
    }
}

#[derive(Debug, Default)]
pub struct Memory {
    regions: BTreeMap<u64, Region>,
    /// Ranges of addresses without memory: start and length.
    reserved: BTreeMap<u64, u64>,
    physical: BTreeMap<u64, Physical>,
    handles: u64,
}

fn file(bytes: u64) -> Result<File, i32> {
    let fd = unsafe { memfd_create(c"gpu".as_ptr(), CLOSE_ON_EXEC) };
    if fd < 0 {
        return Err(codes::OUT_OF_MEMORY);
    }
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(bytes).map_err(|_| codes::OUT_OF_MEMORY)?;
    Ok(file)
}

fn inode(file: &File) -> Result<u64, i32> {
    file.metadata().map(|it| it.ino()).map_err(|_| codes::INVALID_HANDLE)
}

fn map(at: u64, bytes: u64, prot: c_int, flags: c_int, file: Option<&File>) -> Result<u64, i32> {
    let fd = file.map_or(-1, AsRawFd::as_raw_fd);
    let got = unsafe { mmap(at as *mut c_void, bytes as usize, prot, flags, fd, 0) };
    if got as isize == -1 { Err(codes::OUT_OF_MEMORY) } else { Ok(got as u64) }
}

impl Memory {
    /// The range with memory that contains these bytes.
    pub fn region(&self, address: u64, bytes: u64) -> Option<&Region> {
        let (start, region) = self.regions.range(..=address).next_back()?;
        (address.checked_add(bytes)? <= start + region.bytes).then_some(region)
    }

    /// Bytes of memory of this place in use by this process.
    pub fn used(&self, place: &Place) -> u64 {
        let allocated = self.regions.values();
        let allocated = allocated.filter(|it| it.origin == Origin::Allocated && it.place == *place);
        let physical = self.physical.values().filter(|it| it.own && it.place == *place);
        allocated.map(|it| it.bytes).sum::<u64>() + physical.map(|it| it.bytes).sum::<u64>()
    }

    /// Memory at an address that the system chooses, allocated in the context of a GPU.
    pub fn allocate(&mut self, bytes: u64, place: Place, gpu: u32) -> Result<u64, i32> {
        if bytes == 0 {
            return Err(codes::INVALID_VALUE);
        }
        let (origin, file, flags) = match place {
            Place::Host => (Origin::Host, None, PRIVATE | ANONYMOUS),
            Place::Gpu { .. } => (Origin::Allocated, Some(file(bytes)?), SHARED),
        };
        let at = map(0, bytes, READ_WRITE, flags | NO_RESERVE, file.as_ref())?;
        let (allowed, context) = (BTreeSet::new(), Some(gpu));
        self.regions.insert(at, Region { bytes, place, origin, allowed, context, file });
        Ok(at)
    }

    /// Frees all memory of a context.
    pub fn forget(&mut self, gpu: u32) {
        self.regions.retain(|address, region| {
            let stays = region.context != Some(gpu);
            if !stays {
                unsafe { munmap(*address as *mut c_void, region.bytes as usize) };
            }
            stays
        });
    }

    /// Frees memory of this origin.
    pub fn free(&mut self, address: u64, origin: Origin) -> Result<(), i32> {
        let region = self.regions.get(&address).filter(|region| region.origin == origin);
        let bytes = region.ok_or(codes::INVALID_VALUE)?.bytes;
        self.regions.remove(&address);
        unsafe { munmap(address as *mut c_void, bytes as usize) };
        Ok(())
    }

    /// The handle with which another process on this node can open an allocation.
    pub fn ipc(&self, address: u64) -> Result<Token, i32> {
        let region = self.regions.get(&address).ok_or(codes::INVALID_VALUE)?;
        let (Origin::Allocated, Some(file), Place::Gpu { node, gpu }) =
            (region.origin, &region.file, &region.place)
        else {
            return Err(codes::INVALID_VALUE);
        };
        Ok(Token {
            fabric: false,
            process: std::process::id(),
            file: file.as_raw_fd().cast_unsigned(),
            inode: inode(file)?,
            bytes: region.bytes,
            gpu: *gpu,
            clique: 0,
            node: node.clone(),
        })
    }

    pub fn open(&mut self, token: &Token, gpu: u32) -> Result<u64, i32> {
        let file = token.open()?;
        let at = map(0, token.bytes, READ_WRITE, SHARED | NO_RESERVE, Some(&file))?;
        let region = Region {
            bytes: token.bytes,
            place: token.place(),
            origin: Origin::Opened,
            allowed: BTreeSet::new(),
            context: Some(gpu),
            file: Some(file),
        };
        self.regions.insert(at, region);
        Ok(at)
    }

    pub fn create(&mut self, bytes: u64, place: Place) -> Result<u64, i32> {
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
            return Err(codes::INVALID_VALUE);
        }
        let file = file(bytes)?;
        Ok(self.keep(Physical { bytes, place, own: true, file }))
    }

    fn keep(&mut self, physical: Physical) -> u64 {
        self.handles += 1;
        self.physical.insert(self.handles, physical);
        self.handles
    }

    pub fn release(&mut self, handle: u64) -> Result<(), i32> {
        self.physical.remove(&handle).map(|_| ()).ok_or(codes::INVALID_VALUE)
    }

    /// The handle with which a process on another node of this clique can import it.
    pub fn export(&self, handle: u64, clique: i32) -> Result<Token, i32> {
        let physical = self.physical.get(&handle).ok_or(codes::INVALID_VALUE)?;
        let Place::Gpu { node, gpu } = &physical.place else {
            return Err(codes::INVALID_VALUE);
        };
        Ok(Token {
            fabric: true,
            process: std::process::id(),
            file: physical.file.as_raw_fd().cast_unsigned(),
            inode: inode(&physical.file)?,
            bytes: physical.bytes,
            gpu: *gpu,
            clique,
            node: node.clone(),
        })
    }

    pub fn import(&mut self, token: &Token) -> Result<u64, i32> {
        let file = token.open()?;
        let (bytes, place) = (token.bytes, token.place());
        Ok(self.keep(Physical { bytes, place, own: false, file }))
    }

    pub fn reserve(&mut self, bytes: u64, alignment: u64) -> Result<u64, i32> {
        let alignment = alignment.max(GRANULARITY);
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) || !alignment.is_power_of_two() {
            return Err(codes::INVALID_VALUE);
        }
        // More than requested; the ends are unmapped, and the rest is aligned.
        let flags = PRIVATE | ANONYMOUS | NO_RESERVE;
        let start = map(0, bytes + alignment, NONE, flags, None)?;
        let at = start.next_multiple_of(alignment);
        let end = at + bytes;
        unsafe {
            if start < at {
                munmap(start as *mut c_void, (at - start) as usize);
            }
            munmap(end as *mut c_void, (start + alignment - at) as usize);
        }
        self.reserved.insert(at, bytes);
        Ok(at)
    }

    pub fn unreserve(&mut self, address: u64, bytes: u64) -> Result<(), i32> {
        let is_mapped = self.regions.range(address..address + bytes).next().is_some();
        if is_mapped || self.reserved.get(&address) != Some(&bytes) {
            return Err(codes::INVALID_VALUE);
        }
        self.reserved.remove(&address);
        unsafe { munmap(address as *mut c_void, bytes as usize) };
        Ok(())
    }

    /// Maps physical memory at reserved addresses.
    pub fn map(&mut self, address: u64, bytes: u64, handle: u64) -> Result<(), i32> {
        let physical = self.physical.get(&handle).ok_or(codes::INVALID_VALUE)?;
        let (start, length) =
            self.reserved.range(..=address).next_back().ok_or(codes::INVALID_VALUE)?;
        let is_inside = address + bytes <= start + length;
        let is_free = self.regions.range(address..address + bytes).next().is_none();
        if !is_inside || !is_free || physical.bytes != bytes {
            return Err(codes::INVALID_VALUE);
        }
        // Its own file handle: the mapping outlives the physical memory's handle.
        let file = physical.file.try_clone().map_err(|_| codes::OUT_OF_MEMORY)?;
        map(address, bytes, READ_WRITE, SHARED | FIXED | NO_RESERVE, Some(&file))?;
        let region = Region {
            bytes,
            place: physical.place.clone(),
            origin: Origin::Mapped,
            allowed: BTreeSet::new(),
            context: None,
            file: Some(file),
        };
        self.regions.insert(address, region);
        Ok(())
    }

    pub fn unmap(&mut self, address: u64, bytes: u64) -> Result<(), i32> {
        let region = self.regions.get(&address).filter(|it| it.origin == Origin::Mapped);
        if region.is_none_or(|region| region.bytes != bytes) {
            return Err(codes::INVALID_VALUE);
        }
        self.regions.remove(&address);
        map(address, bytes, NONE, PRIVATE | ANONYMOUS | FIXED | NO_RESERVE, None)?;
        Ok(())
    }

    /// Lets a GPU use mapped memory.
    pub fn allow(&mut self, address: u64, bytes: u64, gpu: u32) -> Result<(), i32> {
        let region = self.regions.get_mut(&address).filter(|it| it.origin == Origin::Mapped);
        let region = region.filter(|region| region.bytes == bytes).ok_or(codes::INVALID_VALUE)?;
        region.allowed.insert(gpu);
        Ok(())
    }
}
