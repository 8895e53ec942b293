//! What the driver knows: memory, handles, launches and faults. The calls that change it are in the rooms below.

mod bytes;
mod devices;
mod queues;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::{env, io};

use cudarc::driver::sys::CUresult;

use crate::memory::Memory;
use crate::report::Report;

/// How many GPUs there are, and the bytes of each.
const GPUS: &str = "NULL_DRIVER_GPUS";
const BYTES: &str = "NULL_DRIVER_BYTES";
const USUAL_BYTES: u64 = 80 << 30;
/// Faults that are kept in words.
const MOST_FAULTS: usize = 100;
/// Between two handles, none of which is given twice.
const HANDLE_STEP: u64 = 16;

/// Where a call puts what it answers; callers of a driver may pass nothing.
pub type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Puts an answer there.
pub fn give<T>(out: Out<'_, T>, value: T) -> CUresult {
    match out {
        Some(out) => {
            out.write(value);
            CUresult::CUDA_SUCCESS
        }
        None => CUresult::CUDA_ERROR_INVALID_VALUE,
    }
}

pub struct Driver {
    pub memory: Memory,
    handles: BTreeMap<u64, Handle>,
    last_handle: u64,
    /// Of each GPU, the pool that memory comes from where nobody says otherwise.
    usual_pools: Vec<u64>,
    /// Bytes of the host's memory that are locked, by where they begin.
    locked: BTreeMap<usize, usize>,
    launches: BTreeMap<String, u64>,
    faults: Vec<String>,
}

/// What a handle is of.
pub enum Handle {
    /// A GPU's queue.
    Stream(usize),
    Event,
    Module,
    /// A kernel's name.
    Function(String),
    Pool,
    /// One of the library of products, by its kind.
    Product(&'static str),
}

impl Handle {
    fn kind(&self) -> &'static str {
        match self {
            Self::Stream(_) => "stream",
            Self::Event => "event",
            Self::Module => "module",
            Self::Function(_) => "function",
            Self::Pool => "pool",
            Self::Product(kind) => kind,
        }
    }
}

thread_local! {
    /// The GPU whose context is the thread's.
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The driver of this process.
pub fn locked() -> MutexGuard<'static, Driver> {
    static DRIVER: OnceLock<Mutex<Driver>> = OnceLock::new();
    DRIVER.get_or_init(|| Mutex::new(Driver::new())).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has `last_words` said when the process ends.
pub fn at_exit(last_words: extern "C" fn()) {
    unsafe extern "C" {
        fn atexit(last_words: extern "C" fn()) -> c_int;
    }
    // SAFETY: the function is of this library, which stays loaded once a GPU was asked for.
    let refused = unsafe { atexit(last_words) };
    assert_eq!(refused, 0, "{}", io::Error::last_os_error());
}

fn number(name: &str, usual: u64) -> u64 {
    let read = |text: String| text.parse().unwrap_or_else(|_| panic!("{name}={text:?} is no number"));
    env::var(name).map_or(usual, read)
}

impl Driver {
    fn new() -> Self {
        let gpus = number(GPUS, 1) as usize;
        let memory = Memory::new(gpus, number(BYTES, USUAL_BYTES));
        let (handles, locked, launches) = Default::default();
        let (last_handle, usual_pools, faults) = Default::default();
        let mut driver = Self { memory, handles, last_handle, usual_pools, locked, launches, faults };
        driver.usual_pools = (0..gpus).map(|gpu| driver.new_pool(gpu)).collect();
        driver
    }

    /// All that was asked so far, as JSON.
    pub fn report(&self) -> String {
        let mut handles = BTreeMap::new();
        self.handles.values().for_each(|handle| *handles.entry(handle.kind()).or_default() += 1);
        let locked = self.locked.values().sum::<usize>() as u64;
        let report = Report::new(&self.memory, handles, locked, (&self.launches, &self.faults));
        serde_json::to_string(&report).expect("plain values")
    }

    fn new_pool(&mut self, gpu: usize) -> u64 {
        let pool = self.new_handle(Handle::Pool);
        self.memory.add_pool(pool, gpu);
        pool
    }

    pub fn new_handle(&mut self, of: Handle) -> u64 {
        self.last_handle += HANDLE_STEP;
        self.handles.insert(self.last_handle, of);
        self.last_handle
    }

    /// Ends one of this kind.
    pub fn end_handle(&mut self, handle: u64, kind: &str) -> CUresult {
        match self.handles.get(&handle) {
            Some(of) if of.kind() == kind => {
                self.handles.remove(&handle);
                CUresult::CUDA_SUCCESS
            }
            _ => self.fault(format!("{kind} {handle:#x} is ended, which is none")),
        }
    }

    /// The GPU of a stream.
    fn gpu_of(&mut self, stream: u64) -> Result<usize, CUresult> {
        match self.handles.get(&stream) {
            Some(Handle::Stream(gpu)) => Ok(*gpu),
            _ => Err(self.fault(format!("stream {stream:#x} is none"))),
        }
    }

    /// Counts a launch on a stream.
    pub fn launched(&mut self, name: &str, stream: u64) -> CUresult {
        if let Err(fault) = self.gpu_of(stream) {
            return fault;
        }
        match self.launches.get_mut(name) {
            Some(count) => *count += 1,
            None => {
                self.launches.insert(name.to_owned(), 1);
            }
        }
        CUresult::CUDA_SUCCESS
    }

    /// Notes what no driver forgives.
    pub fn fault(&mut self, words: String) -> CUresult {
        if self.faults.len() < MOST_FAULTS {
            self.faults.push(words);
        }
        CUresult::CUDA_ERROR_INVALID_VALUE
    }
}
