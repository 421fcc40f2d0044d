//! Memory shared with other processes: IPC handles for processes on this node, and physical memory
//! with fabric handles for processes on other nodes.

#![expect(unsafe_code, reason = "calls of the driver")]

use std::ptr::null_mut;

use super::{
    AllocationProp, CudaAllocation, CudaCallError, CudaDevice, CudaLibrary, DevicePointer, FABRIC,
    FABRIC_HANDLE_BYTES, IPC_HANDLE_BYTES, IpcHandle, LAZY_PEER_ACCESS, MemAccessDesc, MemLocation,
    ON_DEVICE, PINNED, READ_WRITE, call,
};

impl CudaLibrary {
    /// Exports a handle with which another process on this node can open memory.
    pub fn ipc_handle(
        &self,
        address: DevicePointer,
    ) -> Result<[u8; IPC_HANDLE_BYTES], CudaCallError> {
        let mut handle = IpcHandle([0; IPC_HANDLE_BYTES]);
        call!(self.ipc_get = "cuIpcGetMemHandle"(&raw mut handle, address.0))?;
        Ok(handle.0)
    }

    /// Opens memory of another process on this node.
    pub fn ipc_open(&self, handle: [u8; IPC_HANDLE_BYTES]) -> Result<DevicePointer, CudaCallError> {
        let mut address = 0;
        let handle = IpcHandle(handle);
        call!(self.ipc_open = "cuIpcOpenMemHandle_v2"(&raw mut address, handle, LAZY_PEER_ACCESS))?;
        Ok(DevicePointer(address))
    }

    /// Closes memory of another process.
    pub fn ipc_close(&self, address: DevicePointer) -> Result<(), CudaCallError> {
        call!(self.ipc_close = "cuIpcCloseMemHandle"(address.0))
    }

    /// Granularity of sizes for [`Self::create_allocation`].
    pub fn granularity(&self, device: CudaDevice) -> Result<usize, CudaCallError> {
        let mut bytes = 0;
        let prop = fabric_allocation_prop(device);
        // CU_MEM_ALLOC_GRANULARITY_RECOMMENDED.
        call!(
            self.granularity = "cuMemGetAllocationGranularity"(&raw mut bytes, &raw const prop, 1)
        )?;
        Ok(bytes)
    }

    /// Allocates memory on a GPU that can be exported over the fabric.
    pub fn create_allocation(
        &self,
        device: CudaDevice,
        bytes: usize,
    ) -> Result<CudaAllocation, CudaCallError> {
        let mut handle = 0;
        let prop = fabric_allocation_prop(device);
        call!(self.create = "cuMemCreate"(&raw mut handle, bytes, &raw const prop, 0))?;
        Ok(CudaAllocation(handle))
    }

    /// Releases an allocation; the driver frees it when its last mapping is gone.
    pub fn release_allocation(&self, allocation: CudaAllocation) -> Result<(), CudaCallError> {
        call!(self.release = "cuMemRelease"(allocation.0))
    }

    /// Reserves an address range.
    pub fn reserve_addresses(
        &self,
        bytes: usize,
        alignment: usize,
    ) -> Result<DevicePointer, CudaCallError> {
        let mut address = 0;
        call!(self.reserve = "cuMemAddressReserve"(&raw mut address, bytes, alignment, 0, 0))?;
        Ok(DevicePointer(address))
    }

    /// Frees an address range.
    pub fn free_addresses(
        &self,
        address: DevicePointer,
        bytes: usize,
    ) -> Result<(), CudaCallError> {
        call!(self.unreserve = "cuMemAddressFree"(address.0, bytes))
    }

    /// Maps an allocation at an address.
    pub fn map_allocation(
        &self,
        address: DevicePointer,
        bytes: usize,
        allocation: CudaAllocation,
    ) -> Result<(), CudaCallError> {
        call!(self.map = "cuMemMap"(address.0, bytes, 0, allocation.0, 0))
    }

    /// Removes a mapping.
    pub fn unmap_addresses(
        &self,
        address: DevicePointer,
        bytes: usize,
    ) -> Result<(), CudaCallError> {
        call!(self.unmap = "cuMemUnmap"(address.0, bytes))
    }

    /// Lets a GPU read and write mapped memory.
    pub fn set_access(
        &self,
        address: DevicePointer,
        bytes: usize,
        device: CudaDevice,
    ) -> Result<(), CudaCallError> {
        let location = MemLocation { kind: ON_DEVICE, id: device.0 };
        let access = MemAccessDesc { location, flags: READ_WRITE };
        call!(self.set_access = "cuMemSetAccess"(address.0, bytes, &raw const access, 1))
    }

    /// Exports a handle with which a process on another node can import memory.
    pub fn export_fabric_handle(
        &self,
        allocation: CudaAllocation,
    ) -> Result<[u8; FABRIC_HANDLE_BYTES], CudaCallError> {
        let mut handle = [0u8; FABRIC_HANDLE_BYTES];
        let place = handle.as_mut_ptr().cast();
        call!(self.export = "cuMemExportToShareableHandle"(place, allocation.0, FABRIC, 0))?;
        Ok(handle)
    }

    /// Imports memory of a process on another node.
    pub fn import_fabric_handle(
        &self,
        handle: [u8; FABRIC_HANDLE_BYTES],
    ) -> Result<CudaAllocation, CudaCallError> {
        let mut allocation = 0;
        let mut handle = handle;
        let place = handle.as_mut_ptr().cast();
        call!(self.import = "cuMemImportFromShareableHandle"(&raw mut allocation, place, FABRIC))?;
        Ok(CudaAllocation(allocation))
    }
}

fn fabric_allocation_prop(device: CudaDevice) -> AllocationProp {
    AllocationProp {
        kind: PINNED,
        handle_types: FABRIC,
        location: MemLocation { kind: ON_DEVICE, id: device.0 },
        win32: null_mut(),
        flags: [0; 8],
    }
}
