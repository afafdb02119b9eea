//! The few calls of NVIDIA's driver that this backend makes, with errors as values. The driver is found when the program
//! runs; where there is none, everything else works.

use crate::error::{Error, Result};
use cudarc::driver::sys;
use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::null_mut;

/// Driver that the machine code was compiled for: CUDA 12.0, NVIDIA's 525.
const OLDEST: i32 = 12_000;

/// Turns a result into an error that names the call.
fn done(call: &'static str, r: sys::CUresult) -> Result<()> {
    if r == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text = std::ptr::null();
    // SAFETY: the driver writes a pointer to a string of its own, or leaves null.
    let known = unsafe { sys::cuGetErrorString(r, &mut text) } == sys::CUresult::CUDA_SUCCESS && !text.is_null();
    // SAFETY: a string of the driver, which lives as long as the program.
    let what = if known { unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned() } else { format!("{r:?}") };
    Err(Error::Cuda { call, what })
}

macro_rules! cu {
    ($f:ident ( $($arg:expr),* $(,)? )) => {
        // SAFETY: pointers are to live locals or to memory of this context; see the function around it.
        done(stringify!($f), unsafe { sys::$f($($arg),*) })
    };
}

/// What is known of a card before it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Its number.
    pub ordinal: u32,
    /// Its name.
    pub name: String,
    /// Compute capability, e.g. 90 for 9.0.
    pub capability: u32,
    /// Multiprocessors.
    pub processors: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// CUDA version of the driver, e.g. 12040 for 12.4.
    pub driver: i32,
}

/// The cards of this machine.
///
/// # Errors
/// [`Error::NoCuda`] without a driver or with one that is too old.
pub fn cards() -> Result<Vec<Card>> {
    // SAFETY: looks whether the library can be opened.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::NoCuda("no NVIDIA driver was found; --device cpu needs none".into()));
    }
    done("cuInit", unsafe {
        // SAFETY: no arguments.
        sys::cuInit(0)
    })
    .map_err(|e| {
        let why = "is there a GPU, and may this program use it? --device cpu needs none";
        Error::NoCuda(format!("an NVIDIA driver was found and does not start ({e}); {why}"))
    })?;
    let mut driver = 0;
    cu!(cuDriverGetVersion(&mut driver))?;
    if driver < OLDEST {
        let have = format!("{}.{}", driver / 1000, driver % 1000 / 10);
        return Err(Error::NoCuda(format!("the NVIDIA driver is for CUDA {have}; 525 or newer (CUDA 12.0) is needed")));
    }
    let mut n = 0;
    cu!(cuDeviceGetCount(&mut n))?;
    (0..n).map(|i| card(i, driver)).collect()
}

/// One of them.
///
/// # Errors
/// [`Error::NoCuda`].
pub fn one(ordinal: u32) -> Result<Card> {
    let mut all = cards()?;
    let none = || Error::NoCuda(format!("there is no cuda:{ordinal}; this machine has {} card(s)", all.len()));
    if ordinal as usize >= all.len() { Err(none()) } else { Ok(all.swap_remove(ordinal as usize)) }
}

fn card(ordinal: c_int, driver: i32) -> Result<Card> {
    use sys::CUdevice_attribute_enum as A;
    let mut dev = 0;
    cu!(cuDeviceGet(&mut dev, ordinal))?;
    let attribute = |a| -> Result<u32> {
        let mut v = 0;
        cu!(cuDeviceGetAttribute(&mut v, a, dev))?;
        Ok(v as u32)
    };
    let mut name = [0i8; 128];
    cu!(cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as c_int, dev))?;
    let bytes: Vec<u8> = name.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
    let mut memory = 0;
    cu!(cuDeviceTotalMem_v2(&mut memory, dev))?;
    Ok(Card {
        ordinal: ordinal as u32,
        name: String::from_utf8_lossy(&bytes).into_owned(),
        capability: 10 * attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?
            + attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        processors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        memory: memory as u64,
        driver,
    })
}

/// An address on the card.
pub type Ptr = sys::CUdeviceptr;

/// A kernel.
#[derive(Copy, Clone)]
pub struct Kernel(sys::CUfunction);
// SAFETY: a handle that the driver allows any thread to use while its context is current.
unsafe impl Send for Kernel {}

/// A captured step.
pub struct Graph(sys::CUgraphExec);
// SAFETY: as above.
unsafe impl Send for Graph {}
impl Drop for Graph {
    fn drop(&mut self) {
        let _ = cu!(cuGraphExecDestroy(self.0));
    }
}

/// A point in the queue.
pub struct Event(sys::CUevent);
// SAFETY: as above.
unsafe impl Send for Event {}
impl Event {
    /// Waits until the queue has come so far.
    pub fn wait(&self) -> Result<()> {
        cu!(cuEventSynchronize(self.0))
    }
    /// Milliseconds from an earlier event.
    pub fn since(&self, earlier: &Event) -> Result<f32> {
        let mut ms = 0.0;
        cu!(cuEventElapsedTime(&mut ms, earlier.0, self.0))?;
        Ok(ms)
    }
}
impl Drop for Event {
    fn drop(&mut self) {
        let _ = cu!(cuEventDestroy_v2(self.0));
    }
}

/// One card's context with one queue.
pub struct Context {
    dev: sys::CUdevice,
    ctx: sys::CUcontext,
    stream: sys::CUstream,
    /// Whether a kernel may begin while the one before it ends (compute capability 9.0, a driver of CUDA 12.3 that records it
    /// in graphs): kernels wait for what they read themselves.
    overlap: bool,
}
// SAFETY: every call makes the context current on the calling thread first.
unsafe impl Send for Context {}

impl Context {
    /// Opens a card.
    ///
    /// # Errors
    /// [`Error::NoCuda`], [`Error::Cuda`].
    pub fn open(ordinal: u32) -> Result<Self> {
        let card = one(ordinal)?;
        let (mut dev, mut ctx) = (0, null_mut());
        cu!(cuDeviceGet(&mut dev, ordinal as c_int))?;
        cu!(cuDevicePrimaryCtxRetain(&mut ctx, dev))?;
        let overlap = card.capability >= 90 && card.driver >= 12_030;
        let mut this = Context { dev, ctx, stream: null_mut(), overlap };
        this.enter()?;
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        cu!(cuStreamCreate(&mut this.stream, flags))?;
        Ok(this)
    }
    /// Makes the context the calling thread's.
    pub fn enter(&self) -> Result<()> {
        cu!(cuCtxSetCurrent(self.ctx))
    }
    /// Free and total bytes, as the driver sees them.
    pub fn memory(&self) -> Result<(u64, u64)> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        cu!(cuMemGetInfo_v2(&mut free, &mut total))?;
        Ok((free as u64, total as u64))
    }
    /// Zeroed memory.
    pub fn alloc(&self, bytes: u64) -> Result<Ptr> {
        self.enter()?;
        let mut p = 0;
        cu!(cuMemAlloc_v2(&mut p, bytes.max(1) as usize)).map_err(|_| Error::OutOfMemory(bytes))?;
        cu!(cuMemsetD8Async(p, 0, bytes.max(1) as usize, self.stream))?;
        Ok(p)
    }
    /// Gives memory back.
    pub fn free(&self, p: Ptr) -> Result<()> {
        self.enter()?;
        self.wait()?;
        cu!(cuMemFree_v2(p))
    }
    fn where_it_lies(&self) -> sys::CUmemAllocationProp {
        // SAFETY: a plain C struct whose fields may all be zero.
        let mut p: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
        p.type_ = sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED;
        p.location.type_ = sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
        p.location.id = self.dev;
        p
    }
    /// Bytes that memory is mapped by.
    pub fn granule(&self) -> Result<u64> {
        self.enter()?;
        let (mut bytes, prop) = (0, self.where_it_lies());
        let least = sys::CUmemAllocationGranularity_flags_enum::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        cu!(cuMemGetAllocationGranularity(&mut bytes, &prop, least))?;
        Ok(bytes as u64)
    }
    /// Addresses without memory behind them, whole granules.
    pub fn reserve(&self, bytes: u64) -> Result<Ptr> {
        self.enter()?;
        let mut p = 0;
        cu!(cuMemAddressReserve(&mut p, bytes as usize, 0, 0, 0)).map_err(|_| Error::OutOfMemory(bytes))?;
        Ok(p)
    }
    /// Gives addresses back.
    pub fn unreserve(&self, p: Ptr, bytes: u64) -> Result<()> {
        self.enter()?;
        cu!(cuMemAddressFree(p, bytes as usize))
    }
    /// Puts one granule of memory behind reserved addresses.
    pub fn map(&self, at: Ptr, granule: u64) -> Result<Granule> {
        self.enter()?;
        let (mut handle, prop) = (0, self.where_it_lies());
        cu!(cuMemCreate(&mut handle, granule as usize, &prop, 0)).map_err(|_| Error::OutOfMemory(granule))?;
        let held = Granule { handle, at: None };
        cu!(cuMemMap(at, granule as usize, 0, handle, 0))?;
        let held = Granule { at: Some((at, granule)), ..held };
        let access = sys::CUmemAccessDesc {
            location: prop.location,
            flags: sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        cu!(cuMemSetAccess(at, granule as usize, &access, 1))?;
        Ok(held)
    }
    /// Takes a granule away again, once nothing enqueued can use it.
    pub fn unmap(&self, g: Granule) -> Result<()> {
        self.enter()?;
        self.wait()?;
        if let Some((at, bytes)) = g.at {
            cu!(cuMemUnmap(at, bytes as usize))?;
        }
        cu!(cuMemRelease(g.handle))
    }
    /// Enqueues zeros.
    pub fn zero(&self, p: Ptr, bytes: u64) -> Result<()> {
        self.enter()?;
        cu!(cuMemsetD8Async(p, 0, bytes as usize, self.stream))
    }
    /// Host memory that the card reads directly.
    pub fn pinned(&self, bytes: usize) -> Result<Pinned> {
        self.enter()?;
        let mut p = null_mut();
        cu!(cuMemHostAlloc(&mut p, bytes, 0)).map_err(|_| Error::OutOfMemory(bytes as u64))?;
        Ok(Pinned { p: p.cast(), bytes })
    }
    /// Enqueues a copy to the card. `src` may change as soon as this returns, unless it is pinned.
    pub fn upload(&self, to: Ptr, src: &[u8]) -> Result<()> {
        self.enter()?;
        cu!(cuMemcpyHtoDAsync_v2(to, src.as_ptr().cast(), src.len(), self.stream))
    }
    /// Waits for everything enqueued, then copies out.
    pub fn download(&self, from: Ptr, dst: &mut [u8]) -> Result<()> {
        self.enter()?;
        cu!(cuMemcpyDtoHAsync_v2(dst.as_mut_ptr().cast(), from, dst.len(), self.stream))?;
        self.wait()
    }
    /// Marks where the queue ends now.
    pub fn mark(&self) -> Result<Event> {
        self.enter()?;
        let mut e = null_mut();
        cu!(cuEventCreate(&mut e, 0))?;
        let event = Event(e);
        cu!(cuEventRecord(event.0, self.stream))?;
        Ok(event)
    }
    /// Enqueues a copy within the card.
    pub fn copy(&self, to: Ptr, from: Ptr, bytes: u64) -> Result<()> {
        self.enter()?;
        cu!(cuMemcpyDtoDAsync_v2(to, from, bytes as usize, self.stream))
    }
    /// Waits for everything enqueued.
    pub fn wait(&self) -> Result<()> {
        cu!(cuStreamSynchronize(self.stream))
    }
    /// Loads machine code and finds its kernels by name.
    pub fn load(&self, code: &[u8], names: &[String]) -> Result<Vec<Kernel>> {
        self.enter()?;
        // PTX is text and must end with a zero; for machine code the byte behind does no harm.
        let code = [code, &[0]].concat();
        let mut module = null_mut();
        cu!(cuModuleLoadData(&mut module, code.as_ptr().cast()))?;
        let find = |n: &String| -> Result<Kernel> {
            let name = CString::new(n.as_str()).map_err(|_| Error::BadBuf)?;
            let mut f = null_mut();
            cu!(cuModuleGetFunction(&mut f, module, name.as_ptr()))?;
            Ok(Kernel(f))
        };
        names.iter().map(find).collect()
    }
    /// Lets a kernel have more shared memory than 48 KiB.
    pub fn allow_shared(&self, k: Kernel, bytes: u32) -> Result<()> {
        self.enter()?;
        let a = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        cu!(cuFuncSetAttribute(k.0, a, bytes as c_int))
    }
    /// Blocks of a kernel that a multiprocessor takes at a time.
    pub fn at_once(&self, k: Kernel, threads: u32, shared: u32) -> Result<u32> {
        self.enter()?;
        let mut n = 0;
        cu!(cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut n, k.0, threads as c_int, shared as usize))?;
        Ok(n.max(0) as u32)
    }
    /// Enqueues a kernel with one struct as its argument.
    pub fn launch<A>(&self, k: Kernel, grid: [u32; 3], block: u32, shared: u32, args: &A) -> Result<()> {
        self.enter()?;
        let mut params = [std::ptr::from_ref(args).cast_mut().cast::<c_void>()];
        let [x, y, z] = grid;
        if !self.overlap {
            let args = params.as_mut_ptr();
            return cu!(cuLaunchKernel(k.0, x, y, z, block, 1, 1, shared, self.stream, args, null_mut()));
        }
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID_enum::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            // SAFETY: a union of plain values, all of which may be zero.
            value: unsafe { std::mem::zeroed() },
        };
        attribute.value.programmaticStreamSerializationAllowed = 1;
        let how = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared,
            hStream: self.stream,
            attrs: &mut attribute,
            numAttrs: 1,
        };
        cu!(cuLaunchKernelEx(&how, k.0, params.as_mut_ptr(), null_mut()))
    }
    /// Enqueued work is recorded from here on.
    pub fn capture(&self) -> Result<()> {
        self.enter()?;
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        cu!(cuStreamBeginCapture_v2(self.stream, mode))
    }
    /// Ends recording and forgets what was recorded.
    pub fn uncaptured(&self) -> Result<()> {
        let mut graph = null_mut();
        cu!(cuStreamEndCapture(self.stream, &mut graph))?;
        if graph.is_null() { Ok(()) } else { cu!(cuGraphDestroy(graph)) }
    }
    /// Ends recording.
    pub fn captured(&self) -> Result<Graph> {
        let (mut graph, mut exec) = (null_mut(), null_mut());
        cu!(cuStreamEndCapture(self.stream, &mut graph))?;
        let made = cu!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
        cu!(cuGraphDestroy(graph))?;
        made?;
        let graph = Graph(exec);
        cu!(cuGraphUpload(graph.0, self.stream))?;
        Ok(graph)
    }
    /// Enqueues a recorded step.
    pub fn replay(&self, g: &Graph) -> Result<()> {
        self.enter()?;
        cu!(cuGraphLaunch(g.0, self.stream))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let _ = self.enter();
        let _ = cu!(cuStreamSynchronize(self.stream));
        let _ = cu!(cuStreamDestroy_v2(self.stream));
        let _ = cu!(cuDevicePrimaryCtxRelease_v2(self.dev));
    }
}

/// A granule of the card's memory. It goes back by [`Context::unmap`].
pub struct Granule {
    handle: sys::CUmemGenericAllocationHandle,
    at: Option<(Ptr, u64)>,
}

/// Page-locked host memory.
pub struct Pinned {
    p: *mut u8,
    bytes: usize,
}
// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}
impl Pinned {
    /// Its bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: allocated with this size, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.p, self.bytes) }
    }
}
impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = cu!(cuMemFreeHost(self.p.cast()));
    }
}
