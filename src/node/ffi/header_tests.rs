//! Compares constants and layouts with NVIDIA's headers, compiled by a C compiler.
//!
//! `ci/contact` fetches the headers and runs these tests; without headers they are ignored.

use std::mem::{align_of, offset_of, size_of};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::cuda::code;
use super::{cuda, nccl};

/// The folder with the headers of one version: `cuda12`, `cuda13`, `nccl`, `nvml12`, `nvml13`.
pub(crate) fn header_folder(version: &str) -> PathBuf {
    let folder =
        std::env::var_os("FABRICGATE_HEADERS").expect("FABRICGATE_HEADERS: see ci/contact");
    Path::new(&folder).join(version)
}

/// A value of the program and the C expression that it must be equal to.
pub(crate) type HeaderValue = (String, i128);

/// The values that differ from those of a header: a C compiler computes the expressions.
#[expect(clippy::disallowed_methods, reason = "a test starts a C compiler and its output")]
pub(crate) fn compare_with_header(
    folders: &[&str],
    header: &str,
    values: &[HeaderValue],
) -> Vec<String> {
    let scratch = tempfile::tempdir().expect("a folder");
    let mut source = format!("#include <stddef.h>\n#include <stdio.h>\n#include \"{header}\"\n");
    source.push_str("int main(void) {\n");
    for (expression, _) in values {
        source.push_str(&format!("    printf(\"%lld\\n\", (long long)({expression}));\n"));
    }
    source.push_str("    return 0;\n}\n");
    let (file, program) = (scratch.path().join("values.c"), scratch.path().join("values"));
    std::fs::write(&file, source).expect("written");
    let mut compiler = Command::new("cc");
    compiler.args(folders.iter().map(|it| format!("-I{}", header_folder(it).display())));
    let compiled = compiler.arg(&file).arg("-o").arg(&program).output().expect("a C compiler");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(&program).output().expect("it runs");
    let printed = String::from_utf8(output.stdout).expect("text");
    let printed: Vec<i128> = printed.lines().map(|it| it.parse().expect("a number")).collect();
    assert_eq!(printed.len(), values.len());
    let pairs = values.iter().zip(printed);
    let different = pairs.filter(|((_, own), theirs)| own != theirs);
    different.map(|((what, own), theirs)| format!("{what}: {own}, in {header} {theirs}")).collect()
}

fn value(expression: &str, own: impl TryInto<i128>) -> HeaderValue {
    (expression.to_owned(), own.try_into().ok().expect("it fits"))
}

/// Size, alignment and field offsets of a structure.
fn layout(name: &str, size: usize, align: usize, offsets: &[(&str, usize)]) -> Vec<HeaderValue> {
    let mut values =
        vec![value(&format!("sizeof({name})"), size), value(&format!("_Alignof({name})"), align)];
    values.extend(
        offsets.iter().map(|(field, at)| value(&format!("offsetof({name}, {field})"), *at)),
    );
    values
}

#[test]
#[ignore = "ci/contact fetches the headers"]
fn cuda_is_that_of_the_headers() {
    use cuda::{AllocationProp, IpcHandle, MemAccessDesc, MemLocation};
    let mut values: Vec<HeaderValue> =
        code::NAMES.iter().map(|(number, name)| value(name, *number)).collect();
    assert!(30 < values.len());
    values.push(value("CUDA_SUCCESS", code::SUCCESS));
    values.extend([
        value("CU_DEVICE_ATTRIBUTE_COMPUTE_MODE", code::attribute::COMPUTE_MODE),
        value("CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE", code::attribute::L2_CACHE_BYTES),
        value("CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR", code::attribute::CAPABILITY_MAJOR),
        value("CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED", code::attribute::FABRIC_HANDLES),
        value("CU_MEM_ALLOCATION_TYPE_PINNED", cuda::PINNED),
        value("CU_MEM_LOCATION_TYPE_DEVICE", cuda::ON_DEVICE),
        value("CU_MEM_HANDLE_TYPE_FABRIC", cuda::FABRIC),
        value("CU_MEM_ACCESS_FLAGS_PROT_READWRITE", cuda::READ_WRITE),
        value("CU_STREAM_NON_BLOCKING", cuda::NON_BLOCKING),
        value("CU_STREAM_WAIT_VALUE_GEQ", cuda::AT_LEAST),
        value("CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS", cuda::LAZY_PEER_ACCESS),
        value("sizeof(CUmemFabricHandle)", cuda::FABRIC_HANDLE_BYTES),
        value("sizeof(CUuuid)", 16),
        value("sizeof(CUdevice)", size_of::<i32>()),
        value("sizeof(CUdeviceptr)", size_of::<u64>()),
        value("sizeof(CUresult)", size_of::<i32>()),
    ]);
    values.extend(layout("CUipcMemHandle", size_of::<IpcHandle>(), align_of::<IpcHandle>(), &[]));
    let location = [("type", offset_of!(MemLocation, kind)), ("id", offset_of!(MemLocation, id))];
    values.extend(layout(
        "CUmemLocation",
        size_of::<MemLocation>(),
        align_of::<MemLocation>(),
        &location,
    ));
    let property = [
        ("type", offset_of!(AllocationProp, kind)),
        ("requestedHandleTypes", offset_of!(AllocationProp, handle_types)),
        ("location", offset_of!(AllocationProp, location)),
        ("win32HandleMetaData", offset_of!(AllocationProp, win32)),
        ("allocFlags", offset_of!(AllocationProp, flags)),
    ];
    let (size, align) = (size_of::<AllocationProp>(), align_of::<AllocationProp>());
    values.extend(layout("CUmemAllocationProp", size, align, &property));
    let access = [
        ("location", offset_of!(MemAccessDesc, location)),
        ("flags", offset_of!(MemAccessDesc, flags)),
    ];
    let (size, align) = (size_of::<MemAccessDesc>(), align_of::<MemAccessDesc>());
    values.extend(layout("CUmemAccessDesc", size, align, &access));
    for version in ["cuda12", "cuda13"] {
        assert_eq!(
            compare_with_header(&[version], "cuda.h", &values),
            Vec::<String>::new(),
            "{version}"
        );
    }
}

#[test]
#[ignore = "ci/contact fetches the headers"]
fn nccl_is_that_of_the_header() {
    use nccl::{NcclConfig, NcclUniqueId, code};
    let mut values: Vec<HeaderValue> =
        (0..=8).map(|number| value(&code::result_name(number), number)).collect();
    values.extend([
        value("ncclNumResults", 9),
        value("ncclFloat32", nccl::FLOAT32),
        value("ncclSum", nccl::SUM),
        value("NCCL_CONFIG_UNDEF_INT", nccl::UNDEFINED),
        value("NCCL_VERSION(2, 14, 0)", nccl::CONFIG_VERSION),
        value("sizeof(ncclUniqueId)", size_of::<NcclUniqueId>()),
        value("offsetof(ncclConfig_t, size)", offset_of!(NcclConfig, size)),
        value("offsetof(ncclConfig_t, magic)", offset_of!(NcclConfig, magic)),
        value("offsetof(ncclConfig_t, version)", offset_of!(NcclConfig, version)),
        value("offsetof(ncclConfig_t, blocking)", offset_of!(NcclConfig, blocking)),
    ]);
    let folders = ["nccl", "nccl-types"];
    assert_eq!(compare_with_header(&folders, "nccl.h", &values), Vec::<String>::new());
}
